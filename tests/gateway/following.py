"""Whether a text follows a grammar, as llguidance says, and what a model's parser makes of it."""

from __future__ import annotations

import functools

from llguidance import LLMatcher, LLTokenizer
from reading import read

from agentgym_rl.config import GatewayConfig
from agentgym_rl.gateway.parsers import readers_of

END = "<|im_end|>"


@functools.cache
def _tokenizer(chat) -> LLTokenizer:
    return LLTokenizer(chat._tokenizer.to_str(), eos_token=2)


def follows(chat, grammar: str, text: str) -> bool:
    """Whether `text` and the end of the turn are a whole reply under `grammar`."""
    matcher = LLMatcher(_tokenizer(chat), LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(id) for id in chat.encode(text + END))


def written(chat, form, *, family: str, prompt_end: str = "assistant\n") -> str:
    """The grammar of a reply of this form."""
    return readers_of(chat, GatewayConfig(tool_parser=family))[1].of(form, prompt_end)


def said(chat, text: str, tools, *, family: str, prompt_end: str = "assistant\n"):
    """What the family's parser reads."""
    return read(readers_of(chat, GatewayConfig(tool_parser=family))[0](tools, prompt_end), text)
