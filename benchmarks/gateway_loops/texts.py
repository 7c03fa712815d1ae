"""What is said in the conversations: so many tokens of the bundled tokenizer, always the same."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer

from agentgym_rl.models.resolve import BUNDLED

_SENTENCE = "The quick brown fox adds 17 and 25, and says: \\boxed{42} is what it is. "


@cache
def tokenizer() -> Tokenizer:
    """The bundled one."""
    return Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))


def ids_of(num_tokens: int) -> list[int]:
    """Token ids of some sentences."""
    text = _SENTENCE * (num_tokens // 10 + 1)
    return tokenizer().encode(text, add_special_tokens=False).ids[:num_tokens]


def text_of(num_tokens: int) -> str:
    """Text of about so many tokens."""
    return tokenizer().decode(ids_of(num_tokens))
