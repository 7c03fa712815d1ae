"""Seeds: one run seed, and from it a seed for everything that draws."""

from __future__ import annotations

import hashlib


def sampling_seed(run_seed: int, name: str) -> int:
    """48 bits, a function of the run's seed and a name alone (an episode's id, say)."""
    digest = hashlib.blake2b(f"{run_seed}/{name}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")
