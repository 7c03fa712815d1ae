"""A hash of a policy's parameters, exact and cheap enough to take at every step."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 22


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """64 bits, in hex, over names, dtypes, shapes and every bit of the tensors.

    Of each tensor the sum of its elements' bits, each times an odd number of its own place, modulo
    2**64: a change of one element always shows, and the order of adding never does, so that any
    number of threads finds the same. The order of the mapping does not matter.
    """
    digest = blake2b(digest_size=8)
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        head = f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:{_sum(tensor)};"
        digest.update(head.encode())
    return digest.hexdigest()


def _sum(tensor: Tensor) -> int:
    bits = tensor.contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])
    total = 0
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        place = torch.arange(start, start + part.numel(), device=part.device)
        total += int((part * (2 * place + 1)).sum())
    return total % 2**64
