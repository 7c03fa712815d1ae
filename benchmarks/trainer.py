"""The trainer compared with padding and with TRL.

Packing: tokens a second of a batch's passes (log-probs, then loss and gradients) in packed, dynamic
micro-batches and in padded ones of a fixed number of rows; one thread, same rows, model and loss,
by turns in one process.

Sharing: the same passes over rows with a common beginning, which is computed once, and over each of
these rows for itself (trainer_loops/sharing.py).

Ranks: the share of the time of many ranks that their passes take, counted in tokens
(trainer_loops/ranks.py).

TRL: forty batches of the main job through the whole stack, gateway, agents and engine over HTTP
included, against TRL's GRPOTrainer on both cores; same model, tasks and rewards, and `arl eval`
judges both. "train_s" is without start-up and evaluation: from the trainer's first wait for a batch
to the end of its last, and TRL's time inside `GRPOTrainer.train`. `make bench-peers` installs TRL
next to this package; without it, the part is skipped, by name.

Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.trainer import join_world

from ._common import hardware, no_peer, peer_python, qwen3, say, versions
from ._runs import TIMEOUT_S, RunFailed, train
from ._toy import sized
from .trainer_loops import packing, ranks, sharing

TRL_PYTHON = peer_python("trl")
SEEDS = sized((1, 2, 3), toy=(1,))
BATCHES = sized(40, toy=4)
RANKS = sized(((8, 8, 4), (64, 8, 8), (64, 8, 32), (32, 16, 64)), toy=((8, 8, 4),))
"""The groups of a batch, their members, and the ranks that get the episodes."""
GOAL = (
    "packed >= 1.3 times padded, rows with a common beginning >= 2 times one by one, padding <= "
    "2 %, ranks busy >= 95 % of their passes; a run's steps in 1 / 1.2 of TRL's time or less, "
    "held-out reward after it equal within 0.05"
)
_MATH = ("--env=math", "--agent=react")

Row = dict[str, Any]


def run(*, seeds: Sequence[int] = SEEDS, batches: int = BATCHES) -> dict[str, Any]:
    """Run both parts; `met` is whether all goals hold."""
    packed, shared = _packing()
    say("episodes dealt to ranks")
    dealt = [ranks.busy(*sizes) for sizes in RANKS]
    ratios: dict[str, float] = {
        f"packed / padded, {ours['lengths']}": round(
            ours["tokens_per_s"] / theirs["tokens_per_s"], 2
        )
        for ours, theirs in zip(packed[::2], packed[1::2], strict=True)
    }
    packs, faster = list(ratios.values()), list(sharing.ratios(shared).values())
    ratios |= sharing.ratios(shared)
    checks = {
        "packed >= 1.3 times padded": min(packs) >= 1.3,
        "shared beginnings >= 2 times as fast": min(faster[:3]) >= 2,
        "nothing to share: as fast within 5 %": faster[3] >= 0.95,
        "padding <= 2 %": all(row["padding"] <= 0.02 for row in packed[::2]),
        "ranks busy >= 95 %": all(
            min(row["busy"], row["busy_of_computed"]) >= 0.95 for row in dealt
        ),
    }
    peers: list[Row] = []
    if TRL_PYTHON:
        peers = [row for seed in seeds for row in (_ours(seed, batches), _trl(seed, batches))]
        checks |= _compared(peers, ratios)
    return {
        "name": "trainer",
        "hardware": hardware(),
        "versions": versions(),
        "rows": [*packed, *shared, *dealt, *peers],
        "ratios": ratios,
        "skipped": [] if TRL_PYTHON else [no_peer("trl")],
        "goal": GOAL,
        "checks": checks,
        "met": bool(TRL_PYTHON) and all(checks.values()),
    }


def _packing() -> tuple[list[Row], list[Row]]:
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch, join_world() as world:
        model = Path(scratch) / "model"
        size = qwen3(model, hidden=128, layers=4, vocab=packing.VOCAB)
        for lengths in packing.samples():
            say(f"packing, {lengths.name} lengths, {size / 1e6:.1f}M parameters")
            rows += packing.compare(model, lengths, world)
        say("rows with a common beginning")
        return rows, list(sharing.compare(model, world))


def _ours(seed: int, batches: int) -> Row:
    row: Row = {"system": "ours", "seed": seed}
    flags = (*_MATH, f"--seed={seed}", f"--steps={batches}", "--eval.num_tasks=0")
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        folder = Path(scratch) / "run"
        try:
            run = train(f"ours, seed {seed}", flags, folder=folder)
            reward = _judged(folder / "export")
        except (RunFailed, subprocess.SubprocessError, ValueError) as error:
            return row | {"error": str(error)}
    return row | _figures(run.training_s, [step["reward/mean"] for step in run.steps], reward)


def _trl(seed: int, batches: int) -> Row:
    row: Row = {"system": "trl", "seed": seed}
    say(f"TRL, seed {seed}")
    loop = Path(__file__).parent / "trainer_loops" / "trl_grpo.py"
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        out = Path(scratch) / "model"
        given = {"--model": BUNDLED, "--seed": seed, "--batches": batches, "--out": out}
        flags = [str(part) for pair in given.items() for part in pair]
        try:
            # Its log is on stdout, too.
            found = json.loads(_output([TRL_PYTHON, str(loop), *flags], threads=2).splitlines()[-1])
            reward = _judged(out)
        except (subprocess.SubprocessError, ValueError) as error:
            return row | {"error": str(error)}
    return row | _figures(found["seconds"], found["rewards"], reward)


def _judged(model: Path) -> float:
    """Return the held-out reward of the model in a folder."""
    command = ("eval", "--json", *_MATH, f"--model={model}", f"--out={model}-eval")
    said = _output([sys.executable, "-m", "agentgym_rl", *command], threads=1)
    return json.loads(said)["reward"]


def _output(command: Sequence[str], *, threads: int) -> bytes:
    """Return the output of a command."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, env=environment, timeout=TIMEOUT_S, check=True
    )
    return done.stdout


def _figures(seconds: float, rewards: Sequence[float], after: float) -> Row:
    tens = [rewards[i : i + 10] for i in range(0, len(rewards), 10)]
    found: Row = {
        "train_s": round(seconds, 1),
        "eval_after": round(after, 3),
        "reward_by_tens": [round(statistics.mean(ten), 3) for ten in tens],
    }
    say(f"  {found}")
    return found


def _compared(rows: Sequence[Row], ratios: dict[str, float]) -> dict[str, bool]:
    """Return the goals that the runs meet; add to `ratios`."""
    checks = {"every run came to its end": all("error" not in row for row in rows)}
    if not all(checks.values()):
        return checks
    ours, theirs = ([row for row in rows if row["system"] == name] for name in ("ours", "trl"))
    seconds, reward = (
        [statistics.median(row[name] for row in of) for of in (ours, theirs)]
        for name in ("train_s", "eval_after")
    )
    ratios["trl / ours, time of the steps"] = round(seconds[1] / seconds[0], 2)
    checks["steps in 1 / 1.2 of TRL's time"] = seconds[1] >= 1.2 * seconds[0]
    checks["held-out reward equal within 0.05"] = abs(reward[0] - reward[1]) <= 0.05
    return checks


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
