"""The texts of the conversations: given numbers of tokens of the bundled tokenizer, always the
same."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer

from agentgym_rl.models.resolve import BUNDLED

_SENTENCE = "The quick brown fox adds 17 and 25, and says: \\boxed{42} is what it is. "


@cache
def tokenizer() -> Tokenizer:
    """Return the bundled tokenizer."""
    return Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))


def ids_of(num_tokens: int) -> list[int]:
    """Return token ids of some sentences."""
    text = _SENTENCE * (num_tokens // 10 + 1)
    return tokenizer().encode(text, add_special_tokens=False).ids[:num_tokens]


def text_of(num_tokens: int) -> str:
    """Return a text of about this number of tokens."""
    return tokenizer().decode(ids_of(num_tokens))
