"""One number over a policy version's tensors (torch alone, so that engines can import it)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """CRC-32, in hex, over names, dtypes, shapes and bytes of contiguous CPU tensors.

    It is there to catch torn and damaged copies, not an adversary; well under a second per
    gigabyte. The order of the mapping does not matter.
    """
    crc = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"
