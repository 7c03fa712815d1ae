"""The formats in which families of models write tool calls: tags, readers and grammars as data.

Each is a member of `agentgym_rl.parsers`: a further family of a known kind is one constant here,
and an entry point in pyproject.toml. A template's call is tried in the order of `order`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from agentgym_rl.gateway import Calls, Format, Frame, block_format, object_grammar

from . import literals, message_calls, xml_calls
from .harmony import HarmonyParser
from .message_calls import MessageParser
from .named_calls import named, named_grammar, read_array, read_mistral
from .response_template import parsers_of
from .xml_calls import Tags


def _tagged(tags: Tags, mention: str, *around: str, order: int) -> Format:
    calls = Calls(partial(xml_calls.call_grammar, tags), *around)
    return block_format(tags.frame(), tags.read, mention=mention, grammar=calls, order=order)


def _gemma(begin: str, end: str, delimiter: str, *, order: int) -> Format:
    frame = Frame({begin: end}, quote=delimiter, unquote=delimiter)
    return block_format(frame, literals.gemma(delimiter), order=order)


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

SEED_OSS = _tagged(_SEED, _SEED.open, order=10)
MINIMAX_M2 = _tagged(
    _MINIMAX, _MINIMAX.before, f"{_MINIMAX.before}\n", "\n", f"\n{_MINIMAX.after}", order=20
)
GLM = _tagged(_GLM, "<arg_key>", order=30)
QWEN3_XML = _tagged(_QWEN, "<function=", order=40)
MISTRAL = block_format(
    _MISTRAL,
    read_mistral,
    grammar=Calls(_ARRAY, "[TOOL_CALLS][", ", ", "]"),
    newer=("[ARGS]", Calls(named_grammar("[TOOL_CALLS]{name}[ARGS]", barred="[{"), "", "")),
    order=60,
)
DEEPSEEK_V3 = block_format(
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
    order=70,
)
DEEPSEEK_V31 = block_format(
    _DEEPSEEK,
    named(_SEP),
    grammar=Calls(
        named_grammar(f"<｜tool▁call▁begin｜>{{name}}{_SEP}", "<｜tool▁call▁end｜>", barred="<"),
        _DEEPSEEK.before,
        "",
        _DEEPSEEK.after,
    ),
    order=80,
)
KIMI_K2 = block_format(
    _KIMI,
    named("<|tool_call_argument_begin|>", prefix="functions.", has_id=True),
    order=90,
)
PHI4_MINI = block_format(
    _PHI,
    read_array,
    mention="<|/tool_call|>",
    grammar=Calls(_ARRAY, "<|tool_call|>[", ", ", "]<|/tool_call|>"),
    order=100,
)
GRANITE = block_format(
    _GRANITE, read_array, grammar=Calls(_ARRAY, "<|tool_call|>[", ", ", "]"), order=110
)
FUNCTIONGEMMA = _gemma("<start_function_call>", "<end_function_call>", "<escape>", order=120)
GEMMA4 = _gemma("<|tool_call>", "<tool_call|>", '<|"|>', order=130)
LLAMA3_JSON = Format(
    make=partial(MessageParser, message_calls.JSON),
    mention="<|python_tag|>",
    grammar=Calls(object_grammar("parameters"), "", "; "),
    object_is_call=True,
    order=140,
)
LLAMA4_JSON = replace(
    LLAMA3_JSON,
    make=partial(MessageParser, message_calls.LLAMA4),
    mention="<|python_start|>",
    order=150,
)
LFM2 = block_format(
    Frame({"<|tool_call_start|>": "<|tool_call_end|>"}, quote="", unquote=""),
    literals.read_block,
    order=160,
)
PYTHONIC = Format(
    make=partial(MessageParser, message_calls.PYTHON), mention="[func_name1(", order=170
)
GPT_OSS = Format(
    make=HarmonyParser,
    mention="<|channel|>commentary",
    whole=lambda chat: HarmonyParser,
    unforced="no grammar is known for the channels of this model's format (gpt_oss)",
    order=180,
)
RESPONSE_TEMPLATE = Format(
    whole=parsers_of,
    unforced=(
        "the model's replies are read by its response template, and no grammar can be derived "
        "from that; set gateway.tool_parser"
    ),
    order=190,
)
