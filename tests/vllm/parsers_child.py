"""Runs under vLLM's interpreter: its own parsers on the texts that come as JSON on stdin.

argv: a tokenizer.json. In: [{tool_parser, reasoning_parser, thinking, tools, text}, …]. Out, as the
last line: [[reasoning, content, [[name, arguments], …]], …].
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager


def parse(tokenizer: Any, case: dict[str, Any]) -> list[Any]:
    """What a vLLM server would answer, were `text` sampled."""
    made = ParserManager.get_parser(
        tool_parser_name=case["tool_parser"],
        reasoning_parser_name=case["reasoning_parser"],
        enable_auto_tools=True,
        tokenizer=tokenizer,
    )
    assert made is not None
    request = ChatCompletionRequest(messages=[], model="m", tools=case["tools"])
    options = {"enable_thinking": case["thinking"]}
    parser = made(tokenizer, request.tools, chat_template_kwargs=options)
    reasoning, content, calls = parser.parse(case["text"], request, enable_auto_tools=True)
    return [reasoning, content, [[call.name, call.arguments] for call in calls or ()]]


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    TOKENIZER = PreTrainedTokenizerFast(tokenizer_file=sys.argv[1])
    print(json.dumps([parse(TOKENIZER, case) for case in json.load(sys.stdin)]))
