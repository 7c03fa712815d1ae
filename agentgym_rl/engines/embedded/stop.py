"""Stop strings, found while tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class StopStrings:
    """Decodes a reply token by token and reports the first stop string to appear.

    Special tokens are part of the text. A stop string may span tokens and may begin inside one;
    text of an incomplete UTF-8 character is seen once the character is complete.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._stream = DecodeStream(skip_special_tokens=False)
        self._keep = max(len(text) for text in self._stop) - 1
        self._tail = ""

    def feed(self, token: int) -> str | None:
        """The stop string that `token` completes, if any; of several, the one that ends first."""
        text = self._stream.step(self._tokenizer, token)
        if not text:
            return None
        seen = self._tail + text
        found = [
            (at + len(stop), order, stop)
            for order, stop in enumerate(self._stop)
            if (at := seen.find(stop)) >= 0
        ]
        self._tail = seen[-self._keep :] if self._keep else ""
        return min(found)[2] if found else None
