"""The comparison of our losses and advantages with those of other systems, on random batches.

    pip install --no-deps --target DIR -r requirements/objectives.txt
    python scripts/peers/compare.py --peers DIR --out docs/data/peers.txt

The functions of AReaL, verl and TRL are their own, taken out of their files without their imports.
NeMo RL has no wheel: nemo.py has its formulas. Only values are written. Rows of docs/coming-from/
name the rows that they refer to (tests/docs/test_coming_from.py), so names have to be changed in
both places. `make test-peers` compares a few batches (tests/algo/test_peers.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from advantages import advantage_rows
from cases import Case, random_case
from losses_areal_nemo import areal_rows, nemo_rows
from losses_verl_trl import trl_rows, verl_rows
from torch import Tensor

TOLERANCE = 2e-6
"""The largest difference of numbers that agree, in units of the larger one, at least 1: parts of
other systems compute in float32."""

Row = tuple[str, str, Callable[[Case], tuple[Tensor, Tensor]]]
"""The name, the system, and the values of both, ours first."""

CANNOT = (
    ("ReMax", "verl", "needs one more, greedy episode of each task, for its baseline"),
    ("GRPO pass@k", "verl", "pays the best episode of a group alone, by its distance to the next"),
    ("optimal token baseline", "verl", "needs the squared norm of each token's gradient"),
    ("VESPO with truncated weights inside", "TRL", "VESPO's own weight takes their place here"),
    ("rollout_is_batch_normalize", "verl", "weights are not divided by their mean"),
)
"""The recipes that cannot be configured here, with the reason."""


def all_rows(peers: Path) -> Iterator[Row]:
    """Yield every row; `peers` is the folder of the other systems."""
    yield from areal_rows(peers / "areal")
    yield from nemo_rows()
    yield from verl_rows(peers / "verl")
    yield from trl_rows(peers / "trl")
    yield from advantage_rows(peers)


def compared(rows: Iterator[Row], num_cases: int) -> Iterator[tuple[str, str, float, bool]]:
    """Yield name, system, largest difference, and whether all cases agree."""
    for name, system, values in rows:
        largest, agree = 0.0, True
        for seed in range(num_cases):
            case = random_case(seed, binary=seed % 2 == 0, gaps=seed % 3 == 2)
            mine, its = (torch.as_tensor(x).double() for x in values(case))
            distance = (mine - its).abs()
            assert bool(torch.isfinite(distance).all()), (name, seed)
            largest = max(largest, float(distance.max()))
            agree &= bool((distance <= TOLERANCE * its.abs().clamp(min=1)).all())
        yield name, system, largest, agree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=Path, required=True, help="the folder of the other systems")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="only rows with this text in their name")
    options = parser.parse_args()
    rows = [row for row in all_rows(options.peers) if options.only in f"{row[1]} {row[0]}"]
    lines, good = [], 0
    for name, system, largest, agree in compared(iter(rows), options.cases):
        lines.append(f"{'agree' if agree else 'differ'} | {system} | {name} | {largest:.1e}")
        good += agree
        print(lines[-1], flush=True)
    lines += [f"cannot be said | {system} | {name} | {why}" for name, system, why in CANNOT]
    head = [
        f"# {good} of {len(rows)} rows agree within {TOLERANCE:g} (relative to numbers above 1),",
        f"# {len(CANNOT)} recipes cannot be said. {options.cases} random batches a row.",
        "# Verdict | system | row | largest difference, or reason",
    ]
    print(*head, sep="\n")
    if options.out:
        options.out.write_text("\n".join(head + lines) + "\n")


if __name__ == "__main__":
    main()
