"""Chat templates that behave as those of well-known model families do, over small tokenizers."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gateway.template.template import ChatTemplate
from agentgym_rl.models.resolve import BUNDLED

CALLS = """\
{%- macro call(c) -%}
<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
{{- '\n</tool_call>' }}
{%- endmacro %}"""

QWEN3 = (
    CALLS
    + """\
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}
    {{- '# Tools\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set state = namespace(asked=messages | length - 1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set state.asked = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- elif m.role == 'assistant' %}
        {%- set thought = m.reasoning_content or '' %}
        {%- set text = m.content or '' %}
        {%- if '</think>' in text %}
            {%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}
            {%- set text = text.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > state.asked and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- text }}
        {%- for c in m.tool_calls or [] %}
            {%- if text or not loop.first %}{{ '\n' }}{% endif %}{{ call(c) }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""
)
"""Thoughts stay within a tool cycle and go once a user speaks; tool answers share a turn."""

LLAMA3 = """\
{{- bos_token }}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{% set messages = messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' }}
{{- strftime_now('%d %b %Y %H:%M:%S.%f') + '\n\n' + system + '<|eot_id|>' }}
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content | tojson + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}
        {%- if tools and loop.first %}
            {%- for tool in tools %}{{ tool | tojson + '\n\n' }}{% endfor %}
        {%- endif %}
        {%- if m.tool_calls %}
            {%- if m.tool_calls | length != 1 %}
                {{- raise_exception('This model only supports single tool-calls at once!') }}
            {%- endif %}
            {%- set f = m.tool_calls[0].function %}
            {{- '{"name": "' + f.name + '", "parameters": ' + f.arguments | tojson + '}' }}
        {%- else %}{{ m.content | trim }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""
"""The time of day in front; one call at a time, which hides the text; tools with the first user."""

MISTRAL = """\
{{- bos_token }}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}
{%- endif %}
{%- set state = namespace(turn=0, asked=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set state.asked = loop.index0 %}{% endif %}
    {%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
        {%- if (m.role == 'user') != (state.turn % 2 == 0) %}
            {{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}
        {%- endif %}
        {%- set state.turn = state.turn + 1 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- if tools and loop.index0 == state.asked %}
            {{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' }}{% if loop.last %}{{ system }}{% endif %}{{ m.content + '[/INST]' }}
    {%- elif m.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for c in m.tool_calls %}
            {%- if c.id | length != 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric of length 9!') }}
            {%- endif %}
            {{- {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}
            {%- if not loop.last %}{{ ', ' }}{% endif %}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif m.role == 'assistant' %}{{ m.content + eos_token }}
    {%- elif m.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' + m.content | tojson + ', "call_id": "' }}
        {{- m.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{ raise_exception('Only user and assistant roles are supported') }}
    {%- endif %}
{%- endfor %}"""
"""System text and tools stand with the last user message, so no turn is local; strict roles; ids of
nine characters; no generation prompt."""

GLM = (
    CALLS
    + """\
{{- '[gMASK]<sop>' }}
{%- if tools %}
    {{- '<|system|>\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}
{%- endif %}
{%- set state = namespace(asked=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set state.asked = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role in ('user', 'system') %}{{ '<|' + m.role + '|>\n' + m.content }}
    {%- elif m.role == 'assistant' %}
        {%- set thought = m.reasoning_content or '' %}
        {%- set text = m.content or '' %}
        {%- if '</think>' in text %}
            {%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}
            {%- set text = text.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|assistant|>\n' }}
        {%- if thought and loop.index0 > state.asked %}
            {{- '<think>' + thought + '</think>\n' }}
        {%- endif %}
        {{- text }}
        {%- for c in m.tool_calls or [] %}
            {%- if text or not loop.first %}{{ '\n' }}{% endif %}{{ call(c) }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|observation|>' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""
)
"""No token closes a turn: the next one's opener does, and models sample it to stop."""

CHATML = """\
{%- for m in messages %}
    {%- if m.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- elif m.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('no such role: ' + m.role) }}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""No tools, and one place for system messages."""


@dataclass(frozen=True)
class Family:
    """A template, the special tokens it names, and those that end a reply."""

    source: str
    special: tuple[str, ...] = ()
    eos: tuple[str, ...] = ("<|im_end|>",)
    bos: str = ""
    metaspace: bool = False
    """Words begin with a blank, as SentencePiece's do; else the bundled tokenizer's bytes."""
    rung: str = "sentinel"

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = _metaspace() if self.metaspace else _bytes()
        tokenizer.add_special_tokens([*self.special, *self.eos, *filter(None, [self.bos])])
        return tokenizer

    @functools.cached_property
    def chat(self) -> ChatFormat:
        named = {"eos_token": self.eos[0], **({"bos_token": self.bos} if self.bos else {})}
        template = ChatTemplate(self.source, special_tokens=named)
        ids = [self.tokenizer.token_to_id(text) for text in self.eos]
        return ChatFormat(self.tokenizer, template, ids)

    @functools.cached_property
    def oracle(self):
        """The tokenizer as transformers has it."""
        import transformers

        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer,
            chat_template=self.source,
            eos_token=self.eos[0],
            bos_token=self.bos or None,
        )

    def theirs(self, messages, tools=None, **kwargs) -> list[int]:
        """What transformers would feed a model."""
        return self.oracle.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, return_dict=False, **kwargs
        )


def _bytes() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _metaspace() -> Tokenizer:
    letters = ["<unk>", "\u2581", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters += [chr(code) for code in range(33, 127)]
    pairs = [("\u2581", letter) for letter in "atwi"] + [("t", "h"), ("i", "n")]
    vocab = {text: id for id, text in enumerate([*letters, *(a + b for a, b in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab, pairs, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
    )
    return tokenizer


_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>")
_INST = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")
_ROLES = ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>")
FAMILIES = {
    "qwen3": Family(QWEN3, special=("<|im_start|>", "<think>", "</think>")),
    "llama3": Family(LLAMA3, special=_HEADERS, eos=("<|eot_id|>",), bos="<|begin_of_text|>"),
    "mistral": Family(
        MISTRAL,
        special=(*_INST, "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        eos=("</s>",),
        bos="<s>",
        metaspace=True,
        rung="eos_count",
    ),
    "glm": Family(GLM, special=_ROLES, eos=("<|endoftext|>", "<|user|>", "<|observation|>")),
    "chatml": Family(CHATML),
}
