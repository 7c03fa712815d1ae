"""Runs under vLLM's interpreter: its own parsers on the texts that come as JSON on stdin.

argv: a folder with NAME.json, a tokenizer, for each name. In: [{name, tool_parser,
reasoning_parser, thinking, tools, text, cuts}, …]. Out, as the last line: [{whole, streamed, cuts},
…], each [reasoning, content, [[name, arguments], …]]; `streamed` is the sum of the deltas of single
tokens, and `cuts` the number of cuts between two tokens whose deltas add up to something else.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager

HARMONY = "gpt_oss"


class HarmonyTokenizer:
    """As much of a tokenizer as vLLM's parser of gpt-oss uses."""

    def __init__(self) -> None:
        from openai_harmony import HarmonyEncodingName, load_harmony_encoding

        self._encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)

    def get_vocab(self) -> dict[str, int]:
        return {}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self._encoding.encode(text, allowed_special="all")

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return self._encoding.decode(ids)


@cache
def tokenizer_of(name: str) -> Any:
    if name == HARMONY:
        return HarmonyTokenizer()
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(sys.argv[1], f"{name}.json"))


def make(case: dict[str, Any]) -> tuple[Any, Any]:
    tokenizer = tokenizer_of(case["name"])
    made = ParserManager.get_parser(
        tool_parser_name=case["tool_parser"],
        reasoning_parser_name=case["reasoning_parser"],
        enable_auto_tools=True,
        is_harmony=case["name"] == HARMONY,
    )
    assert made is not None
    request = ChatCompletionRequest(messages=[], model="m", tools=case["tools"])
    options = {"enable_thinking": case["thinking"], "thinking": case["thinking"]}
    return made(tokenizer, request.tools, chat_template_kwargs=options), request


def whole(case: dict[str, Any]) -> list[Any]:
    """What a vLLM server would answer, were `text` sampled."""
    parser, request = make(case)
    ids = tokenizer_of(case["name"]).encode(case["text"], add_special_tokens=False)
    reasoning, content, calls = parser.parse(
        case["text"], request, enable_auto_tools=True, model_output_token_ids=ids
    )
    return [reasoning, content, [[call.name, call.arguments] for call in calls or ()]]


Piece = tuple[str, list[int]]


def pieces_of(tokenizer: Any, ids: Sequence[int], ends: Sequence[int]) -> list[Piece]:
    """The text and ids of the pieces that end before these tokens, at whole characters."""
    pieces, start, known = [], 0, ""
    for end in [*ends, len(ids)]:
        text = tokenizer.decode(ids[:end], skip_special_tokens=False)
        if text.endswith("\ufffd") and end < len(ids):
            continue
        pieces.append((text[len(known) :], list(ids[start:end])))
        start, known = end, text
    return pieces


def streamed(case: dict[str, Any], ends: Sequence[int], ids: Sequence[int]) -> list[Any]:
    """What the deltas of these pieces add up to."""
    parser, request = make(case)
    said, calls = {"reasoning": "", "content": ""}, dict[int, list[str]]()
    pieces = pieces_of(tokenizer_of(case["name"]), ids, ends)
    for number, (text, some) in enumerate(pieces):
        delta = parser.parse_delta(
            text, some, request, prompt_token_ids=[], finished=number == len(pieces) - 1
        )
        for name in said if delta else ():
            said[name] += getattr(delta, name) or ""
        for call in (delta.tool_calls or ()) if delta else ():
            found = calls.setdefault(call.index, ["", ""])
            if call.function is not None:
                found[0] += call.function.name or ""
                found[1] += call.function.arguments or ""
    return [said["reasoning"], said["content"], [calls[index] for index in sorted(calls)]]


def read(case: dict[str, Any]) -> dict[str, Any]:
    ids = tokenizer_of(case["name"]).encode(case["text"], add_special_tokens=False)
    result = {"whole": whole(case), "streamed": None, "cuts": 0}
    try:
        result["streamed"] = streamed(case, range(1, len(ids)), ids)
        if case["cuts"]:
            ends = range(1, len(ids))
            result["cuts"] = sum(streamed(case, [end], ids) != result["streamed"] for end in ends)
    except Exception as error:
        result["streamed"] = repr(error)
    return result


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(json.dumps([read(case) for case in json.load(sys.stdin)]))
