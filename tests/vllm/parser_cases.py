"""Texts that vLLM's parsers and ours read, and where they are not to agree, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

REASONS = {
    "malformed": "a closed call is a call for us, so that the environment can answer with an "
    "error; for vLLM one broken call makes content of all, or it guesses a call",
    "unclosed": "a call that never closes is content for us, as nobody knows what was to follow; "
    "vLLM's XML parser reads as far as it goes",
    "quoted_close": "a close tag inside a JSON string is a part of the string",
    "after_calls": "content after the calls is content; vLLM drops it",
    "large_number": "numbers stay as they were written; vLLM's XML parser makes floats of them",
    "around_calls": "Llama's format is a message of calls alone, or what follows the tag; vLLM "
    "takes any JSON object in the text for a call, and drops the text",
    "no_open_tag": "vLLM's XML parser reads <function=…> that no <tool_call> opens",
    "untagged": "a reply without <think> is an answer, unless the prompt opened the thought; "
    "vLLM's parser has no prompt here and takes it for thought",
    "call_in_thought": "calls in a thought that closes are thoughts; vLLM ends a thought at "
    "<tool_call>",
    "second_tag": "only a reply that begins with <think> has a thought, and one; vLLM drops every "
    "further tag",
}

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "i": {"type": "integer"},
                "n": {"type": "number"},
                "b": {"type": "boolean"},
                "o": {"type": "object"},
                "a": {"type": "array"},
                "u": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
        },
    },
}


@dataclass(frozen=True)
class Case:
    """`differs`: a key of REASONS if the two must not agree. `thinks`: whether thoughts are read,
    and what the prompt did to the thought: opened it, closed it, or left it to the model itself."""

    family: str
    text: str
    differs: str = ""
    thinks: Literal["", "itself", "opened", "closed"] = ""


def hermes(arguments: str, name: str = "f") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def xml(**values: str) -> str:
    inside = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items())
    return f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"


def llama(arguments: str) -> str:
    return f'{{"name": "f", "parameters": {arguments}}}'


H, X, L, TAG = hermes('{"s":  "é"}'), xml(s="é", i="5"), llama('{"s":  "é"}'), "<|python_tag|>"
T = "<think>\nHm.\n</think>\n\n"

NAMED = [
    Case("hermes", H),
    Case("hermes", "No call."),
    Case("hermes", f"Let me.\n{H}\n{H}\n"),
    Case("hermes", hermes('{"s": "\\ud83d\\ude00 \\"q\\" \\\\ \\n", "o": {"a": [1, {}]}}')),
    Case("hermes", "<tool_call>" + H[12:-13] + "</tool_call>"),
    Case("hermes", '<tool_call>{"arguments": {}, "name": "g", "id": 3}</tool_call>'),
    Case("hermes", H[:-5]),
    Case("hermes", f"{H} Done.", "after_calls"),
    Case("hermes", hermes('{"s": "</tool_call>"}'), "quoted_close"),
    Case("hermes", hermes('{"s": 1'), "malformed"),
    Case("hermes", hermes('"{}"'), "malformed"),
    Case("hermes", f"{H}\n<tool_call>\nf(1)\n</tool_call>", "malformed"),
    Case("hermes", H.removesuffix("</tool_call>"), "unclosed"),
    Case("qwen3_xml", X),
    Case("qwen3_xml", "No call."),
    Case("qwen3_xml", f"Let me.\n{X}\n{xml()}\n{X}\n"),
    Case("qwen3_xml", f"{X}\nDone.", "after_calls"),
    Case("qwen3_xml", xml(n="12345678901234567890"), "large_number"),
    Case("qwen3_xml", xml(i="12345678901234567890")),
    Case("qwen3_xml", xml(s=' two  spaces \n\n"é" <b> ')),
    Case("qwen3_xml", xml(s="\n</tool_call>\n")),
    Case("qwen3_xml", xml(s="5", i="5", n="5.5", b="True", o='{"a":  1}', a="[1]", u="null")),
    Case("qwen3_xml", xml(i="3.0", n="1e3", b="1", u="7", x="7")),
    Case("qwen3_xml", xml(i="five", n="nan", b="yes", o="{'a': 1}", a="[1,]", u="None")),
    Case("qwen3_xml", xml(o="[1]", a='{"a": 1}', i="+5", n="-0.5")),
    Case("qwen3_xml", X.replace("</function>", "").replace("5", "6"), "malformed"),
    Case("qwen3_xml", X.replace("5\n</parameter>", "5"), "malformed"),
    Case("qwen3_xml", X.replace("=f>", "=>"), "malformed"),
    Case("qwen3_xml", "<tool_call>\nf(1)\n</tool_call>", "malformed"),
    Case("qwen3_xml", X.removesuffix("</tool_call>"), "unclosed"),
    Case("qwen3_xml", X.removeprefix("<tool_call>\n"), "no_open_tag"),
    Case("llama3_json", L),
    Case("llama3_json", "No call."),
    Case("llama3_json", f"{TAG}{L}"),
    Case("llama3_json", f"{TAG}{L}; {L};{L}"),
    Case("llama3_json", f"\n{L}\n{L}\n"),
    Case("llama3_json", llama('{"s": "}\\"{;", "o": {"a": [1, {}]}}')),
    Case("llama3_json", '{"type": "function", "name": "f", "arguments": {}}'),
    Case("llama3_json", '{"answer": 12}'),
    Case("llama3_json", L[:-1]),
    Case("llama3_json", f"{TAG}print(1)"),
    Case("llama3_json", llama("3"), "malformed"),
    Case("llama3_json", llama("{,}"), "malformed"),
    Case("llama3_json", f"Let me: {L}", "around_calls"),
    Case("llama3_json", f"Let me. {TAG}{L}", "around_calls"),
    Case("llama3_json", f"{L} Done.", "after_calls"),
    Case("hermes", f"{T}So.", thinks="itself"),
    Case("hermes", f"{T}Let me.\n{H}", thinks="itself"),
    Case("qwen3_xml", f"{T}Let me.\n{X}\n{X}", thinks="itself"),
    Case("hermes", "<think>Hm.</think>So.", thinks="itself"),
    Case("hermes", "<think>\n\n</think>\n\nSo.", thinks="itself"),
    Case("hermes", "<think>\nHm. <b>", thinks="itself"),
    Case("hermes", T, thinks="itself"),
    Case("hermes", f"<think>\nHm.\n{H}", thinks="itself"),
    Case("qwen3_xml", f"<think>\nHm.\n{X}\n{X}", thinks="itself"),
    Case("qwen3_xml", f"<think>\nOr {X}?\n</think>\n\nSo.", "call_in_thought", thinks="itself"),
    Case("hermes", "<think>In <tool_call> tags?</think>So.", "call_in_thought", thinks="itself"),
    Case("hermes", "Hm.\n</think>\n\nSo.", thinks="opened"),
    Case("qwen3_xml", f"Hm.\n</think>\n\nLet me.\n{X}", thinks="opened"),
    Case("hermes", "<think>\nHm.\n</think>\n\nSo.", thinks="opened"),
    Case("hermes", "Hm.", thinks="opened"),
    Case("hermes", f"Hm.\n{H}", thinks="opened"),
    Case("hermes", "So.", thinks="closed"),
    Case("qwen3_xml", f"Let me.\n{X}", thinks="closed"),
    Case("hermes", "So.", "untagged", thinks="itself"),
    Case("hermes", "Hm.\n</think>\n\nSo.", "untagged", thinks="itself"),
    Case("hermes", f"{T}a</think>b", "second_tag", thinks="itself"),
    Case("hermes", "So <think>Hm.</think>", "second_tag", thinks="itself"),
]


def well_formed(*, num: int, seed: int) -> list[Case]:
    """Random replies in which nothing is wrong: there the two must agree."""
    random = Random(seed)
    return [_well_formed(random) for _ in range(num)]


def _well_formed(random: Random) -> Case:
    family = random.choice(["hermes", "qwen3_xml", "llama3_json"])
    calls = [_call(random, family) for _ in range(random.choice([0, 1, 1, 2, 3]))]
    if family == "llama3_json":
        text = random.choice(["", TAG]) + "; ".join(calls) if calls else _prose(random)
        return Case(family, text)
    prose = _prose(random) if not calls or random.random() < 0.5 else ""
    thinks = random.choice(["", "itself", "opened", "closed"])
    thought = f"{_prose(random)}\n</think>\n\n" if thinks in ("itself", "opened") else ""
    thought = f"<think>\n{thought}" if thinks == "itself" else thought
    return Case(family, thought + "\n".join([*([prose] if prose else []), *calls]), thinks=thinks)


def _call(random: Random, family: str) -> str:
    arguments = {key: _value(random, key) for key in random.sample("sinboau", random.randint(0, 4))}
    if family == "qwen3_xml":
        texts = {
            key: value if key == "s" else json.dumps(value) for key, value in arguments.items()
        }
        return xml(**texts)
    escaped, indent = random.random() < 0.5, random.choice([None, None, 1])
    written = json.dumps(arguments, ensure_ascii=escaped, indent=indent)
    return hermes(written) if family == "hermes" else llama(written)


def _value(random: Random, key: str) -> Any:
    text = "".join(random.choices("ab é漢😀\n\t\"'\\{}[]<>&;:,", k=random.randint(0, 12)))
    number = random.choice([0, -7, 1234567890, 2.5, -1e-7])
    values = {
        "s": text,
        "i": random.randint(-9, 9),
        "n": number,
        "b": random.random() < 0.5,
        "o": {text: [number, {"x": text}]},
        "a": [text, None, number],
        "u": random.choice([None, 3]),
    }
    return values[key]


def _prose(random: Random) -> str:
    return " ".join(random.choices(["So", "é", "3 < 4", "it\nis", "漢字", "<b>x</b>"], k=4)) + "."
