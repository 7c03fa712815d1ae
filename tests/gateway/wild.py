"""Chat templates as they are found in the wild: without tools, strict, forgetful, or unfinished."""

import sysconfig
from pathlib import Path

import pytest
from families import CALLS, CHATML, Family

DEFAULT_SYSTEM = """\
{%- for m in messages %}
    {%- if loop.first and m.role != 'system' %}
        {{- '<|im_start|>system\nYou are a model.<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Any role, no tools, a system message of its own (SmolLM2)."""

STRICT = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {%- set role = 'model' if m.role == 'assistant' else m.role %}
    {{- '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
"""No system message, strict roles, trimmed texts (Gemma 2)."""

INST = """\
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if m.role == 'user' %}
        {{- bos_token + '[INST] ' + (system if loop.first else '') + m.content + ' [/INST]' }}
    {%- else %}{{ ' ' + m.content | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}"""
"""Strict roles, a system message inside the first user's, no generation prompt (Llama 2)."""

SILENT = """\
{%- for m in messages if m.role in ('user', 'assistant') %}
    {{- 'Question: ' if m.role == 'user' else 'Answer: ' }}
    {{- m.content | trim + eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"""
"""Roles other than two are dropped without a word (BLIP-2)."""

HEADLESS = CHATML.rpartition("{%- if add_generation_prompt %}")[0]
"""No generation prompt, although turns have an opening."""

LATE_CLOSE = """\
{%- for m in messages -%}
    {{- '<|im_start|>' + m.role + '\n' + m.content -}}
    {%- if not loop.last or add_generation_prompt %}{{ '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'assistant' %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""
"""The last turn is closed only before a generation prompt (vLLM's own ChatML)."""

NO_RESULTS = (
    CALLS
    + """\
{%- if tools %}{{ '<|im_start|>system\n' ~ tools | tojson ~ '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{{ raise_exception('no such role') }}{% endif %}
    {{- '<|im_start|>' + m.role + '\n' + m.content }}
    {%- for c in m.tool_calls or [] %}{{ call(c) }}{% endfor %}{{ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
)
"""Tools and calls of its own, but no role for results."""

OWN_CALLS = CHATML.replace(
    "+ m.content +",
    "+ m.content ~ ('<call>' ~ m.tool_calls | tojson ~ '</call>' if m.tool_calls else '') +",
).replace("'assistant')", "'assistant', 'tool')")
"""Calls in a form of its own; the tools are left to the system message."""

PARTS = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' }}
    {%- for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Contents are lists of parts, as of models that see."""

INSIDE = (
    CALLS
    + """\
{%- if tools %}{{ '<|im_start|>system\n' ~ tools | tojson ~ '<|im_end|>\n' }}{% endif %}
{%- set state = namespace(open=false) %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{{ m.content + '<|result|>' }}
    {%- elif m.role == 'assistant' %}
        {{- '' if state.open else '<|im_start|>assistant\n' }}
        {%- for c in m.tool_calls or [] %}{{ call(c) }}{% endfor %}
        {%- set state.open = m.tool_calls and true or false %}
        {{- '<|result|>' if state.open else (m.content or '') + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_end|>\n' if state.open else '' }}{% set state.open = false %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not state.open %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
)
"""Results stand in the turn that calls, after a token that ends calls (Gemma 4)."""

WILD = {
    "default system": Family(DEFAULT_SYSTEM),
    "strict": Family(STRICT, special=("<start_of_turn>",), eos=("<end_of_turn>",), bos="<bos>"),
    "inst": Family(INST, special=("[INST]", "[/INST]"), eos=("</s>",), bos="<s>", metaspace=True),
    "silent": Family(SILENT, eos=("</s>",)),
    "headless": Family(HEADLESS),
    "late close": Family(LATE_CLOSE),
    "parts": Family(PARTS),
    "no results": Family(NO_RESULTS),
    "own calls": Family(OWN_CALLS),
    "inside": Family(INSIDE, special=("<|result|>",)),
}


def shipped(folder: str) -> list[Path]:
    """The templates in a package's folder, of this environment or of one beside it."""
    beside = Path(__file__).parents[2].glob(".venv*/lib/python3*/site-packages")
    places = [Path(sysconfig.get_paths()["purelib"]), *beside]
    found = next((all for place in places if (all := sorted(place.glob(f"{folder}/*.jinja")))), [])
    if not found:
        pytest.skip(f"{folder} is not installed, here or in a .venv beside: nothing to read")
    return found
