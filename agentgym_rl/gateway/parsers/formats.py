"""The formats in which families of models write tool calls: tags, readers and grammars as data.

`families` chooses one of them. A new family of a known kind is one entry here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from . import json_calls, literals, message_calls, xml_calls
from .harmony import HarmonyParser
from .json_calls import named, named_grammar, object_grammar
from .lark import CallGrammar
from .message_calls import MessageParser
from .parser import BlockParser, Frame, Parser, Read, Tools
from .xml_calls import Tags


class Calls(NamedTuple):
    """The grammar of one call, and the texts before, between and after the calls of a reply."""

    call: CallGrammar
    before: str = ""
    between: str = "\n"
    after: str = ""


@dataclass(frozen=True)
class Format:
    """A family's calls. `mention`: a text that marks its chat templates; `grammar`: None if there
    is none; `newer`: a tag and the grammar of models whose tokenizer has it."""

    make: Callable[[Tools], Parser]
    mention: str
    grammar: Calls | None = None
    newer: tuple[str, Calls] | None = None

    def __call__(self, tools: Tools) -> Parser:
        """Return the parser of one reply."""
        return self.make(tools)


def _blocks(frame: Frame, read: Read, mention: str = "", **grammar: Any) -> Format:
    mention = mention or next(iter(frame.pairs))
    return Format(partial(BlockParser, frame, read), mention, **grammar)


def _tagged(tags: Tags, mention: str, *around: str) -> Format:
    calls = Calls(partial(xml_calls.call_grammar, tags), *around)
    return _blocks(tags.frame(), tags.read, mention, grammar=calls)


def _gemma(begin: str, end: str, delimiter: str) -> Format:
    frame = Frame({begin: end}, quote=delimiter, unquote=delimiter)
    return _blocks(frame, literals.gemma(delimiter))


_QWEN = Tags(
    family="qwen3_xml",
    open="<tool_call>",
    close="</tool_call>",
    begin="<tool_call>\n<function={name}>\n",
    name=re.compile(r"<function=([^<>\n]*)>"),
    key="<parameter={key}>\n",
    value_end="</parameter>",
    end="</function>\n</tool_call>",
)
_SEED = replace(
    _QWEN,
    family="seed_oss",
    open="<seed:tool_call>",
    close="</seed:tool_call>",
    begin="<seed:tool_call>\n<function={name}>\n",
    key="<parameter={key}>",
    end="</function>\n</seed:tool_call>",
)
_GLM = Tags(
    family="glm",
    open="<tool_call>",
    close="</tool_call>",
    begin="<tool_call>{name}\n",
    name=re.compile(r"\A([\w.:/-]+)"),
    key="<arg_key>{key}</arg_key>\n<arg_value>",
    value_end="</arg_value>",
    end="</tool_call>",
)
_MINIMAX = Tags(
    family="minimax_m2",
    open="<invoke name=",
    close="</invoke>",
    before="<minimax:tool_call>",
    after="</minimax:tool_call>",
    begin='<invoke name="{name}">\n',
    name=re.compile(r'\A"([^"<>\n]*)">'),
    key='<parameter name="{key}">',
    value_end="</parameter>",
    end="</invoke>",
)
_DEEPSEEK = Frame(
    {"<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>"},
    before="<｜tool▁calls▁begin｜>",
    after="<｜tool▁calls▁end｜>",
)
_SEP = "<｜tool▁sep｜>"
_KIMI = Frame(
    {"<|tool_call_begin|>": "<|tool_call_end|>"},
    before="<|tool_calls_section_begin|>",
    after="<|tool_calls_section_end|>",
)
_MISTRAL = Frame({"[TOOL_CALLS]": ""}, marks=("[ARGS]", "[CALL_ID]"))
_GRANITE = Frame({"<|tool_call|>": "", "<tool_call>": ""})
_PHI = Frame({"<|tool_call|>": "<|/tool_call|>", "functools[": ""})
_ARRAY = object_grammar("arguments")
FORMATS: Mapping[str, Format] = {
    "seed_oss": _tagged(_SEED, _SEED.open),
    "minimax_m2": _tagged(
        _MINIMAX, _MINIMAX.before, f"{_MINIMAX.before}\n", "\n", f"\n{_MINIMAX.after}"
    ),
    "glm": _tagged(_GLM, "<arg_key>"),
    "qwen3_xml": _tagged(_QWEN, "<function="),
    "hermes": _blocks(
        Frame({"<tool_call>": "</tool_call>"}),
        json_calls.read_call,
        grammar=Calls(object_grammar("arguments", "<tool_call>\n", "\n</tool_call>")),
    ),
    "mistral": _blocks(
        _MISTRAL,
        json_calls.read_mistral,
        grammar=Calls(_ARRAY, "[TOOL_CALLS][", ", ", "]"),
        newer=("[ARGS]", Calls(named_grammar("[TOOL_CALLS]{name}[ARGS]", barred="[{"), "", "")),
    ),
    "deepseek_v3": _blocks(
        _DEEPSEEK,
        named("\n```json\n", prefix=f"function{_SEP}", tail="```"),
        mention="'```json'",
        grammar=Calls(
            named_grammar(
                f"<｜tool▁call▁begin｜>function{_SEP}{{name}}\n```json\n",
                "\n```<｜tool▁call▁end｜>",
                barred="<",
            ),
            _DEEPSEEK.before,
            "\n",
            _DEEPSEEK.after,
        ),
    ),
    "deepseek_v31": _blocks(
        _DEEPSEEK,
        named(_SEP),
        grammar=Calls(
            named_grammar(
                f"<｜tool▁call▁begin｜>{{name}}{_SEP}", "<｜tool▁call▁end｜>", barred="<"
            ),
            _DEEPSEEK.before,
            "",
            _DEEPSEEK.after,
        ),
    ),
    "kimi_k2": _blocks(
        _KIMI, named("<|tool_call_argument_begin|>", prefix="functions.", has_id=True)
    ),
    "phi4_mini": _blocks(
        _PHI,
        json_calls.read_array,
        mention="<|/tool_call|>",
        grammar=Calls(_ARRAY, "<|tool_call|>[", ", ", "]<|/tool_call|>"),
    ),
    "granite": _blocks(
        _GRANITE, json_calls.read_array, grammar=Calls(_ARRAY, "<|tool_call|>[", ", ", "]")
    ),
    "functiongemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "llama3_json": Format(
        partial(MessageParser, message_calls.JSON),
        "<|python_tag|>",
        Calls(object_grammar("parameters"), "", "; "),
    ),
    "llama4_json": Format(
        partial(MessageParser, message_calls.LLAMA4),
        "<|python_start|>",
        Calls(object_grammar("parameters"), "", "; "),
    ),
    "lfm2": _blocks(
        Frame({"<|tool_call_start|>": "<|tool_call_end|>"}, quote="", unquote=""),
        literals.read_block,
    ),
    "pythonic": Format(partial(MessageParser, message_calls.PYTHON), "[func_name1("),
    "gpt_oss": Format(HarmonyParser, "<|channel|>commentary"),
}
"""The formats by family, in the order in which a template's call is tried."""
