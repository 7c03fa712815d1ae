"""Texts that vLLM's parsers and ours read, with the cases in which the two must not agree, and the
reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from .call_formats import WRITE

REASONS = {
    "malformed": "a closed call is a call for us, so that the environment can answer with an "
    "error; for vLLM one broken call makes content of all, or it guesses a call",
    "unclosed": "a call that never closes is content for us, as nobody knows what was to follow; "
    "vLLM's XML parser reads as far as it goes",
    "quoted_close": "a close tag inside a JSON string is a part of the string",
    "after_calls": "content after the calls is content; vLLM drops it",
    "large_number": "numbers stay as they were written; vLLM's XML parser makes floats of them",
    "around_calls": "Llama's format is a message of calls alone, or what follows the tag; vLLM "
    "takes any JSON object in the text for a call; here and for Phi-4 it drops the text",
    "no_open_tag": "vLLM's XML parser reads <function=…> that no <tool_call> opens",
    "untagged": "a reply without <think> is an answer, unless the prompt opened the thought; "
    "vLLM's parser has no prompt here and takes it for thought",
    "call_in_thought": "calls in a thought that closes are thoughts; vLLM ends a thought at "
    "<tool_call>",
    "line_breaks": "a value is what stands between its tags, as this family's template writes it; "
    "vLLM drops a line break at either end",
    "unknown_tool": "a call of a tool that does not exist is a call, and the environment answers; "
    "vLLM drops it",
    "untold": "vLLM's whole parser is not told that the prompt opened or closed the thought",
    "bare_values": "vLLM's pattern finds quoted values only",
    "quoted_number": "a quoted value is a string; vLLM reads it as JSON if it can",
    "no_schema": "a number is a number where the schema says nothing; vLLM makes a string of it",
    "brackets": "vLLM's pattern ends at the first ] of the arguments, and it drops the call",
    "open_thought": "a thought that never closes is reasoning, and a call in it ends it, in every "
    "family; for vLLM it is one or the other in this one",
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
    """A text to be read. `name`: as in WRITE; `differs`: a key of REASONS if the two must not
    agree. `thinks`: whether thoughts are read, and what the prompt did to the thought: opened it,
    closed it, or left it to the model itself; `cut`: whether the reply was cut, and the model did
    not end it."""

    name: str
    text: str
    differs: str = ""
    thinks: Literal["", "itself", "opened", "closed"] = ""
    cut: bool = False

    @property
    def family(self) -> str:
        return self.name.partition(" ")[0]


ORACLES: Mapping[str, tuple[str, str]] = {
    "seed_oss": ("seed_oss", "seed_oss"),
    "minimax_m2": ("minimax_m2", "minimax_m2"),
    "glm": ("glm45", "glm45"),
    "qwen3_xml": ("qwen3_xml", "qwen3"),
    "hermes": ("hermes", "qwen3"),
    "mistral": ("mistral", "mistral"),
    "mistral (newer)": ("mistral", "mistral"),
    "deepseek_v3": ("deepseek_v3", "deepseek_r1"),
    "deepseek_v31": ("deepseek_v31", "deepseek_v3"),
    "kimi_k2": ("kimi_k2", "kimi_k2"),
    "phi4_mini (functools)": ("phi4_mini_json", ""),
    "granite": ("granite", "granite"),
    "functiongemma": ("functiongemma", ""),
    "gemma4": ("gemma4", "gemma4"),
    "llama3_json": ("llama3_json", ""),
    "llama4_json": ("llama4_json", ""),
    "lfm2": ("lfm2", ""),
    "pythonic": ("llama4_pythonic", ""),
    "gpt_oss": ("openai", "openai_gptoss"),
}
"""vLLM's parsers of calls and of thoughts. It has none for `<|tool_call|>…<|/tool_call|>`, as
Phi-4-mini's own template describes them."""
THOUGHTS: Mapping[str, tuple[str, str, str]] = {
    "seed_oss": ("seed_oss", "<seed:think>", "</seed:think>"),
    "mistral": ("mistral", "[THINK]", "[/THINK]"),
    "mistral (newer)": ("mistral", "[THINK]", "[/THINK]"),
    "granite": ("granite", "Here is my thought process:", "Here is my response:"),
    "gemma4": ("gemma4", "<|channel>thought\n", "<channel|>"),
    "gpt_oss": ("", "<|channel|>analysis<|message|>", "<|end|>"),
    **{
        name: ("think", "<think>\n", "\n</think>\n\n")
        for name in ("minimax_m2", "glm", "qwen3_xml", "hermes", "deepseek_v31", "kimi_k2")
    },
    "deepseek_v3": ("deepseek_r1", "<think>\n", "\n</think>\n\n"),
}
"""Our parser of thoughts, and the tags around them."""
OPENED = (
    *("seed_oss", "minimax_m2", "glm", "qwen3_xml", "hermes"),
    *("deepseek_v3", "deepseek_v31", "kimi_k2"),
)
"""The families whose templates may open the thought."""
XML = ("seed_oss", "minimax_m2", "glm", "qwen3_xml")


def hermes(arguments: str, name: str = "f") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def xml(**values: str) -> str:
    inside = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items())
    return f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"


def llama(arguments: str) -> str:
    return f'{{"name": "f", "parameters": {arguments}}}'


H, X, L, TAG = hermes('{"s":  "é"}'), xml(s="é", i="5"), llama('{"s":  "é"}'), "<|python_tag|>"
T = "<think>\nHm.\n</think>\n\n"

_THREE = [
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


_ONE = [("f", {"s": "é"})]
_SAY = {"gpt_oss": "<|channel|>final<|message|>"}
_KINDS: Mapping[str, list[Any]] = {
    "one": _ONE,
    "two": [("f", {"s": "é"}), ("f", {"i": 5})],
    "empty": [("f", {})],
    "unknown": [("nope", {"x": 1})],
    "typed": [("f", {"i": 5, "n": 2.5, "b": True, "u": None, "o": {"a": [1, {}]}, "a": ["x"]})],
    "quotes": [("f", {"s": 'it\'s "q" \\\\ }{][ <b> é漢😀'})],
    "lines": [("f", {"s": "a\n\nb\tc"})],
    "spaces": [("f", {"s": "  two  spaces "})],
    "digits": [("f", {"s": "5"})],
}
_LLAMA = ("llama3_json", "llama4_json")
_WHOLE = ("hermes", *_LLAMA, "phi4_mini (functools)", "lfm2", "pythonic")
"""The families in which a call that is cut is content for vLLM, too."""
_DEEPSEEK = ("deepseek_v3", "deepseek_v31")
_DIFFERS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "after_calls": {"after": tuple(name for name in ORACLES if name != "lfm2")},
    "unclosed": {
        "cut .4": tuple(
            name
            for name in ORACLES
            if name not in (*_WHOLE, "functiongemma", "mistral (newer)", "gpt_oss")
        ),
        "cut .7": tuple(name for name in ORACLES if name not in (*_WHOLE, "gpt_oss")),
        "cut .9": tuple(
            name for name in ORACLES if name not in (*_WHOLE, *_DEEPSEEK, "minimax_m2", "kimi_k2")
        ),
    },
    "unknown_tool": {"unknown": ("minimax_m2", "glm")},
    "untagged": {
        "untagged": tuple(
            name
            for name in THOUGHTS
            if name not in ("granite", "gemma4", "gpt_oss", "deepseek_v3") and "mistral" not in name
        ),
    },
    "untold": {"closed": ("minimax_m2", "deepseek_v3")},
    "bare_values": {
        "two": ("functiongemma",),
        "unknown": ("functiongemma",),
        "typed": ("functiongemma",),
    },
    "quoted_number": {"digits": ("functiongemma",)},
    "no_schema": {"unknown": ("gemma4",), "typed": ("gemma4",)},
    "around_calls": {"before": (*_LLAMA, "phi4_mini (functools)")},
    "brackets": {
        "typed": ("phi4_mini (functools)",),
        "quotes": ("phi4_mini (functools)",),
    },
    "malformed": {"broken": ("hermes", "mistral", "phi4_mini (functools)", "lfm2")},
    "open_thought": {
        "thought open": ("granite",),
        "call in thought": ("granite", "gpt_oss", *_DEEPSEEK),
    },
}
"""The reason why a kind of text is read in other ways in these families."""


def _texts_of(name: str) -> Iterator[tuple[str, str, Any]]:
    """Yield a kind, a text, and what it has of thoughts."""
    write, say = WRITE[name], _SAY.get(name, "")
    call, turn = write(_ONE), "<|end|><|start|>assistant" if say else ""
    yield "prose", f"{say}No call. [1] {{x}} 3 < 4", ""
    yield "before", f"{say}Let me.{turn or chr(10)}{call}", ""
    yield "after", f"{call}\nDone.", ""
    for kind, calls in _KINDS.items():
        yield kind, write(calls), ""
    for share in (4, 7, 9):
        yield f"cut .{share}", call[: len(call) * share // 10], ""
    if name not in XML:
        yield "broken", call.replace('"é"', '"é').replace("'é'", "'é"), ""
    if name not in THOUGHTS:
        return
    _, opens, closes = THOUGHTS[name]
    thought = f"{opens}Hm.{closes}{'<|start|>assistant' if say else ''}"
    yield "thought", f"{thought}{say}So.", "itself"
    yield "thought, call", f"{thought}{call}", "itself"
    yield "thought open", f"{opens}Hm. 3 < 4", "itself"
    yield "call in thought", f"{opens}Hm.\n{call}", "itself"
    yield "untagged", f"{say}So.", "itself"
    yield "closed", f"{say}So.", "closed"
    if name in OPENED:
        yield "opened", f"Hm.{closes}So.", "opened"
        yield "opened, call", f"Hm.{closes}{call}", "opened"


def _cases_of(name: str) -> Iterator[Case]:
    for kind, text, thinks in _texts_of(name):
        why = (reason for reason, kinds in _DIFFERS.items() if name in kinds.get(kind, ()))
        yield Case(name, text, next(why, ""), thinks, kind.startswith("cut"))


NAMED = [
    Case("seed_oss", WRITE["seed_oss"]([("f", {"s": "\na\n"})]), "line_breaks"),
    *(case for name in ORACLES for case in _cases_of(name)),
    *_THREE,
]


def well_formed(*, num: int, seed: int) -> list[Case]:
    """Return random well-formed replies, `num` of each family, on which the two must agree."""
    random = Random(seed)
    return [_well_formed(random, name) for name in ORACLES for _ in range(num)]


def _well_formed(random: Random, name: str) -> Case:
    calls = [_call(random, name) for _ in range(random.choice([0, 1, 1, 2, 3]))]
    if name == "gpt_oss":
        calls = calls[:1]
    say = _SAY.get(name, "")
    alone = name in (*_LLAMA, "pythonic", "phi4_mini (functools)")
    prose = say + _prose(random) if not calls or (not alone and random.random() < 0.5) else ""
    between = "<|end|><|start|>assistant" if say and prose and calls else "\n" if prose else ""
    said = prose + (between + WRITE[name](calls) if calls else "")
    if name not in THOUGHTS:
        return Case(name, said)
    _, opens, closes = THOUGHTS[name]
    states = ["", "itself", "opened", "closed"] if name in OPENED else ["", "itself"]
    told = [state for state in states if name not in _DIFFERS["untold"].get(state, ())]
    thinks: Any = random.choice(told)
    thought = f"{_prose(random)}{closes}{'<|start|>assistant' if say else ''}"
    thought = thought if thinks in ("itself", "opened") else ""
    return Case(name, (opens if thinks == "itself" else "") + thought + said, thinks=thinks)


_KEYS = {"functiongemma": "s", "gemma4": "sinbu"}


def _call(random: Random, name: str) -> tuple[str, dict[str, Any]]:
    keys = _KEYS.get(name, "sinboau")
    some = random.sample(keys, random.randint(0, min(4, len(keys))))
    return "f", {key: _value(random, key, name) for key in some}


def _value(random: Random, key: str, name: str) -> Any:
    text = "".join(random.choices("ab é漢😀\n\t\"'\\{}[]<>&;:,", k=random.randint(0, 12)))
    number = random.choice([0, -7, 1234567890, 2.5, -1e-7])
    if "functools" in name:
        text, key = text.replace("]", ")"), key if key != "a" and key != "o" else "s"
    if name == "seed_oss":
        text = text.strip("\n")
    if name == "functiongemma":
        text = f"x{text}"
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
