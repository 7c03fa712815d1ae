"""Seeds: one run seed, and from it a seed for everything that draws."""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, name: str) -> int:
    """48 bits, a function of `seed` and a name alone (an episode's id, a request's number)."""
    return derived_number(f"{seed}/{name}")


def derived_number(text: str, *, bits: int = 48) -> int:
    """`bits` (a multiple of 8) that are `text`'s own."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=bits // 8).digest(), "big")
