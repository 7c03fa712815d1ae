"""Calls as model families write them: texts, and templates of our own that behave as theirs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gateway.template.template import ChatTemplate
from agentgym_rl.models.resolve import BUNDLED

Calls = Sequence[tuple[str, Mapping[str, Any]]]
"""The names and arguments of calls."""
Dump = Callable[[Any], str]


def plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tagged(value: Any, dump: Dump = plain) -> str:
    return value if isinstance(value, str) else dump(value)


def objects(key: str, before: str, between: str, after: str) -> Callable[..., str]:
    def write(calls: Calls, dump: Dump = plain) -> str:
        each = (f'{{"name": {plain(name)}, "{key}": {dump(args)}}}' for name, args in calls)
        return before + between.join(each) + after

    return write


def parts(before: str, call: str, between: str, after: str) -> Callable[..., str]:
    """Return the parts of `call`, which holds the places NAME, NUMBER and JSON."""

    def write(calls: Calls, dump: Dump = plain) -> str:
        each = (
            call.replace("NAME", name).replace("NUMBER", str(n)).replace("JSON", dump(args))
            for n, (name, args) in enumerate(calls)
        )
        return before + between.join(each) + after

    return write


def xml(begin: str, value: str, end: str, before: str = "", after: str = "") -> Callable[..., str]:
    def write(calls: Calls, dump: Dump = plain) -> str:
        each = (
            begin.replace("NAME", name)
            + "".join(
                value.replace("KEY", key).replace("VALUE", tagged(one, dump))
                for key, one in args.items()
            )
            + end
            for name, args in calls
        )
        return before + "\n".join(each) + after

    return write


def gemma_value(value: Any, mark: str) -> str:
    if isinstance(value, str):
        return f"{mark}{value}{mark}"
    if isinstance(value, dict):
        items = (f"{key}:{gemma_value(one, mark)}" for key, one in value.items())
        return "{" + ",".join(items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma_value(one, mark) for one in value) + "]"
    return json.dumps(value)


def gemma(begin: str, end: str, mark: str) -> Callable[..., str]:
    def write(calls: Calls, dump: Dump = plain) -> str:
        each = (f"{begin}call:{name}{gemma_value(args, mark)}{end}" for name, args in calls)
        return "".join(each)

    return write


def pythonic(calls: Calls, dump: Dump = plain) -> str:
    each = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})"
        for name, args in calls
    )
    return f"[{', '.join(each)}]"


def harmony(calls: Calls, dump: Dump = plain) -> str:
    begin = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>JSON<|call|>"
    return parts("", begin, "<|start|>assistant", "")(calls, dump)


_CALL = "<｜tool▁call▁begin｜>"
_CALL_END = "<｜tool▁call▁end｜>"
_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_KIMI = "<|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>JSON<|tool_call_end|>"
WRITE: Mapping[str, Callable[..., str]] = {
    "seed_oss": xml(
        "<seed:tool_call>\n<function=NAME>\n",
        "<parameter=KEY>VALUE</parameter>\n",
        "</function>\n</seed:tool_call>",
    ),
    "minimax_m2": xml(
        '<invoke name="NAME">\n',
        '<parameter name="KEY">VALUE</parameter>\n',
        "</invoke>",
        "<minimax:tool_call>\n",
        "\n</minimax:tool_call>",
    ),
    "glm": xml(
        "<tool_call>NAME\n",
        "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
        "</tool_call>",
    ),
    "qwen3_xml": xml(
        "<tool_call>\n<function=NAME>\n",
        "<parameter=KEY>\nVALUE\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "hermes": objects(
        "arguments", "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"
    ),
    "mistral": objects("arguments", "[TOOL_CALLS][", ", ", "]"),
    "mistral (newer)": parts("", "[TOOL_CALLS]NAME[ARGS]JSON", "", ""),
    "deepseek_v3": parts(
        _CALLS,
        f"{_CALL}function<｜tool▁sep｜>NAME\n```json\nJSON\n```{_CALL_END}",
        "\n",
        _CALLS_END,
    ),
    "deepseek_v31": parts(_CALLS, f"{_CALL}NAME<｜tool▁sep｜>JSON{_CALL_END}", "", _CALLS_END),
    "kimi_k2": parts("<|tool_calls_section_begin|>", _KIMI, "", "<|tool_calls_section_end|>"),
    "phi4_mini": objects("arguments", "<|tool_call|>[", ", ", "]<|/tool_call|>"),
    "phi4_mini (functools)": objects("arguments", "functools[", ", ", "]"),
    "granite": objects("arguments", "<|tool_call|>[", ", ", "]"),
    "functiongemma": gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "llama3_json": objects("parameters", "", "; ", ""),
    "llama4_json": objects("parameters", "", "; ", ""),
    "lfm2": lambda calls, dump=plain: f"<|tool_call_start|>{pythonic(calls)}<|tool_call_end|>",
    "pythonic": pythonic,
    "gpt_oss": harmony,
}
"""The text of calls, as a model of the family writes it."""

_XML_VALUE = "(value if value is string else value | tojson)"
_ARGS = "(c.function.arguments | tojson)"
_OBJECT = f"""'{{"name": "' ~ c.function.name ~ '", "KEY": ' ~ {_ARGS} ~ 'END}}'"""
_ITEMS = "{%- for key, value in c.function.arguments.items() %}{{- ITEM }}{% endfor %}"


def _loop(before: str, call: str, between: str, after: str) -> str:
    """Return the inside of a loop over the calls `c` of a message."""
    return (
        f"{{{{- {before!r} if loop.first else {between!r} }}}}"
        + call
        + f"{{{{- {after!r} if loop.last else '' }}}}"
    )


def _written(expression: str) -> str:
    return f"{{{{- {expression} }}}}"


def _object(key: str = "arguments", more: str = "") -> str:
    return _written(_OBJECT.replace("KEY", key).replace("END", more))


def _tags(begin: str, item: str, end: str) -> str:
    return _written(begin) + _ITEMS.replace("ITEM", item) + _written(f"{end!r}")


_XML_ITEM = f"'<parameter=' ~ key ~ '>\\n' ~ {_XML_VALUE} ~ '\\n</parameter>\\n'"
_INLINE_ITEM = _XML_ITEM.replace("\\n' ~", "' ~").replace("~ '\\n<", "~ '<")
_GEMMA = """\
{%- macro shown(v) -%}
    {%- if v is string %}{{ 'MARK' ~ v ~ 'MARK' }}
    {%- elif v is boolean or v is none %}{{ v | tojson }}
    {%- elif v is mapping %}{
        {%- for k, one in v.items() %}{{ ',' if not loop.first }}{{ k ~ ':' ~ shown(one) }}
        {%- endfor %}}
    {%- elif v is iterable %}[
        {%- for one in v %}{{ ',' if not loop.first }}{{ shown(one) }}{% endfor %}]
    {%- else %}{{ v }}{% endif %}
{%- endmacro %}
{%- set args = c.function.arguments %}
{{- 'BEGINcall:' ~ c.function.name ~ ('{' ~ args ~ '}' if args is string else shown(args)) }}
{{- 'END' }}"""


def _gemma(begin: str, end: str, mark: str) -> str:
    return _GEMMA.replace("BEGIN", begin).replace("END", end).replace("MARK", mark)


_PYTHON = (
    _written("c.function.name ~ '('")
    + "{%- for key, value in c.function.arguments.items() %}"
    + "{{- ', ' if not loop.first }}{{- key ~ '=' ~ (value | tojson) }}{% endfor %}{{- ')' }}"
)
TURN = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
    {%- for c in m.tool_calls or [] %}CALL{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""A chat template but for what it writes of a call, at the place of CALL."""
TEMPLATES: Mapping[str, str] = {
    "seed_oss": _loop(
        "<seed:tool_call>\n",
        _tags("'<function=' ~ c.function.name ~ '>\\n'", _INLINE_ITEM, "</function>\n"),
        "\n<seed:tool_call>\n",
        "",
    )
    + "{{- '</seed:tool_call>' }}",
    "minimax_m2": _loop(
        "<minimax:tool_call>\n",
        _tags(
            "'<invoke name=\"' ~ c.function.name ~ '\">\\n'",
            f"'<parameter name=\"' ~ key ~ '\">' ~ {_XML_VALUE} ~ '</parameter>\\n'",
            "</invoke>",
        ),
        "\n",
        "\n</minimax:tool_call>",
    ),
    "glm": _tags(
        "'<tool_call>' ~ c.function.name ~ '\\n'",
        f"'<arg_key>' ~ key ~ '</arg_key>\\n<arg_value>' ~ {_XML_VALUE} ~ '</arg_value>\\n'",
        "</tool_call>",
    ),
    "qwen3_xml": _tags(
        "'<tool_call>\\n<function=' ~ c.function.name ~ '>\\n'",
        _XML_ITEM,
        "</function>\n</tool_call>",
    ),
    "hermes": _loop("<tool_call>\n", _object(), "\n<tool_call>\n", "")
    + _written(r"'\n</tool_call>'"),
    "mistral": "{%- if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    + _loop("[TOOL_CALLS][", _object(more=""", "id": "' ~ c.id ~ '\""""), ", ", "]"),
    "mistral (newer)": _written(f"'[TOOL_CALLS]' ~ c.function.name ~ '[ARGS]' ~ {_ARGS}"),
    "deepseek_v3": _loop(
        _CALLS,
        _written(
            f"'{_CALL}' ~ c.type ~ '<｜tool▁sep｜>' ~ c.function.name ~ '\\n' ~ '```json' ~ '\\n'"
            f" + c.function.arguments + '\\n```{_CALL_END}'"
        ),
        "\n",
        _CALLS_END,
    ),
    "deepseek_v31": _loop(
        _CALLS,
        _written(f"'{_CALL}' ~ c.function.name ~ '<｜tool▁sep｜>' ~ {_ARGS} ~ '{_CALL_END}'"),
        "",
        _CALLS_END,
    ),
    "kimi_k2": _loop(
        "<|tool_calls_section_begin|>",
        _written(
            "'<|tool_call_begin|>' ~ c.id ~ '<|tool_call_argument_begin|>' ~ "
            f"{_ARGS} ~ '<|tool_call_end|>'"
        ),
        "",
        "<|tool_calls_section_end|>",
    ),
    "phi4_mini": _loop("<|tool_call|>[", _object(), ", ", "]<|/tool_call|>"),
    "phi4_mini (functools)": _loop("functools[", _object(), ", ", "]"),
    "granite": _loop("<|tool_call|>[", _object(), ", ", "]"),
    "functiongemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "llama3_json": _loop("", _object("parameters"), "; ", ""),
    "llama4_json": _loop("<|python_start|><|python_end|>", _object("parameters"), "; ", ""),
    "pythonic": _loop("[", _PYTHON, ", ", "]"),
    "lfm2": _loop("<|tool_call_start|>[", _PYTHON, ", ", "]<|tool_call_end|>"),
}
"""The inside of a template's loop over the calls `c` of a message."""

HARMONY = """\
{%- for m in messages %}
    {%- if m.role == 'assistant' and m.tool_calls %}
        {%- if m.thinking %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|>' }}
        {%- endif %}
        {%- set f = m.tool_calls[0].function %}
        {{- '<|start|>assistant to=functions.' ~ f.name ~ '<|channel|>commentary json<|message|>' }}
        {{- (f.arguments | tojson) ~ '<|call|>' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|end|>' }}
    {%- elif m.role == 'tool' %}
        {{- '<|start|>functions.f to=assistant<|channel|>commentary<|message|>' }}
        {{- (m.content | tojson) ~ '<|end|>' }}
    {%- else %}{{- '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""
HARMONY_TOKENS = (
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>"),
    *("<|return|>", "<|call|>"),
)
SPECIAL: Mapping[str, Sequence[str]] = {
    "seed_oss": ("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
    "minimax_m2": ("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"),
    "glm": (
        *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        *("<think>", "</think>"),
    ),
    "mistral": ("[TOOL_CALLS]", "[THINK]", "[/THINK]"),
    "mistral (newer)": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    "deepseek_v3": (_CALLS, _CALLS_END, _CALL, _CALL_END, "<｜tool▁sep｜>", "<think>", "</think>"),
    "deepseek_v31": (_CALLS, _CALLS_END, _CALL, _CALL_END, "<｜tool▁sep｜>", "<think>", "</think>"),
    "kimi_k2": (
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"),
    ),
    "phi4_mini": ("<|tool_call|>", "<|/tool_call|>"),
    "granite": ("<|tool_call|>",),
    "functiongemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    "llama3_json": ("<|python_tag|>",),
    "llama4_json": ("<|python_tag|>", "<|python_start|>", "<|python_end|>"),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "gpt_oss": HARMONY_TOKENS,
}
"""The added tokens of a family's tokenizer that its replies hold."""


@functools.cache
def chat_of(name: str) -> ChatFormat:
    """Return the chat format of a family, with its own tokens."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    tokenizer.add_special_tokens(list(SPECIAL.get(name, ())))
    source = HARMONY if name == "gpt_oss" else TURN.replace("CALL", TEMPLATES[name])
    ends = ("<|call|>", "<|return|>") if name == "gpt_oss" else ("<|im_end|>",)
    ids = [id for id in map(tokenizer.token_to_id, ends) if id is not None]
    return ChatFormat(tokenizer, ChatTemplate(source, special_tokens={}), ids)
