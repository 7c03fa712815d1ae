"""Seeds: one run seed, and from it a seed for everything that draws."""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, name: str) -> int:
    """48 bits, a function of `seed` and a name alone (an episode's id, a request's number)."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")
