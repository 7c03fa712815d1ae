"""A member of a broadcast group in a process of its own (see test_broadcast.py)."""

from __future__ import annotations

import sys

import torch
from arl_gloo import broadcast
from arl_gloo.broadcast import BroadcastGroup

from agentgym_rl.core import WeightsError

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "empty": torch.zeros(0, 4),
    "b": torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(3),
    "flag": torch.tensor([True]),
}


def kinds() -> tuple[list[str], list[torch.dtype], list[torch.Size]]:
    """Names, dtypes and shapes of TENSORS."""
    parts = TENSORS.values()
    return list(TENSORS), [part.dtype for part in parts], [part.shape for part in parts]


def main(port: str, rank: str, size: str, timeout_s: str, sent: str, bucket_bytes: str) -> None:
    """Receive until it fails."""
    broadcast.BUCKET_BYTES = int(bucket_bytes)
    group = BroadcastGroup(
        address="127.0.0.1",
        port=int(port),
        rank=int(rank),
        world_size=int(size),
        timeout_s=float(timeout_s),
    )
    print("met", flush=True)
    try:
        while True:
            found = group.receive(*kinds(), sent)
            same = all(torch.equal(found[name], part) for name, part in TENSORS.items())
            print("same" if same and list(found) == list(TENSORS) else "different", flush=True)
    except WeightsError as error:
        print(error, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
