"""The replay of a batch of a run: trained once more from the log and the checkpoint before it."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_rl.config import Config, load_config
from agentgym_rl.controller import shards_of
from agentgym_rl.core import ConfigError, parse_json
from agentgym_rl.models import model_of_run
from agentgym_rl.storage import config_of, newest_checkpoint, read_manifest
from agentgym_rl.storage.episode_reader import explained, open_to_read
from agentgym_rl.storage.recovery import batches
from agentgym_rl.storage.run_folder import build, shown

LOSS_TOLERANCE = 1e-4
"""The tolerance, relative and absolute, for a run of several ranks, equal only up to rounding."""
_OTHER_CODE = 1e-6
"""The absolute tolerance for a batch that other code trained. A loss is a small difference of large
parts: other minibatches, for example, change it by more."""


def replay(
    run: Path,
    *,
    step: int,
    model: str = "",
    on_batch: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Train batch `step` of `run` again, after the batches between it and the checkpoint before it.
    `model`: the place of the model that the run began with, if it is not where it was.

    Raises:
        ConfigError: there is no such batch in the run's log.
        TrainerError: the checkpoint or the model cannot be loaded.
    """
    config = load_config(config_of(run, f"arl replay {run}"))
    recorded = _recorded(run / "episodes.db")
    if step not in recorded:
        last = max(recorded, default=-1)
        raise ConfigError(
            f"--step {step}: {shown(run)} has trained the batches 0 to {last}"
            if recorded
            else f"{shown(run)} has trained no batch yet"
        )
    checkpoint = newest_checkpoint(run / "checkpoints", at_most=step)
    first = read_manifest(checkpoint).step if checkpoint else 0
    found = batches(run / "episodes.db", first=first, last=step)
    from .recompute import replay_batches  # torch

    replayed = replay_batches(
        config,
        [_whole(number, found, config) for number in range(first, step + 1)],
        model_dir=model_of_run(config.model, config.env.id, run, given=model),
        checkpoint=checkpoint,
        lengths={number: was.num_steps for number, was in recorded.items() if was.num_steps},
    )
    rows: list[dict[str, Any]] = []
    for batch in replayed:
        was = recorded[batch.step]
        rows.append(_compared(batch.step, was, batch.metrics["loss"], batch.parameters))
        on_batch(1)
    return {
        "run": shown(run),
        "step": step,
        "checkpoint": str(checkpoint or ""),
        "batches": rows,
        "bit_for_bit": all(row["bit_for_bit"] for row in rows),
        "passed": all(row["passed"] for row in rows),
    }


def _whole(step: int, found: dict[int, Any], config: Config) -> Any:
    """Return batch `step` as the shard of a single rank."""
    if step not in found:
        raise ConfigError(f"the log has no batch {step}: is it the log of this run?")
    (shard,) = shards_of(
        found[step], step=step, algo=config.algo, trainer=config.trainer, num_ranks=1
    )
    return shard


class _Was(NamedTuple):
    """The record of a batch that became a version, as last trained."""

    loss: float | None
    parameters: str
    num_ranks: int
    build: str
    """The version of the package that trained it, with a digest of its code; "": an early one."""
    is_old: bool
    """Whether the hash of the weights was computed in the way of format 0."""
    num_steps: int
    """The number of batches that the run was to have, on which a decaying learning rate depends;
    0: unknown."""


def _recorded(log: Path) -> dict[int, _Was]:
    query = """
        SELECT steps.step, metrics, parameters, incarnations.* FROM steps JOIN incarnations
        USING (incarnation) ORDER BY incarnation"""
    found: dict[int, _Was] = {}
    with contextlib.closing(open_to_read(log)) as db, explained(log):
        db.row_factory = sqlite3.Row
        for row in db.execute(query):
            known = dict(row)  # logs of format 0 have no format and no build
            loss = parse_json(known["metrics"]).get("loss")
            of = (
                *(known["num_ranks"], known.get("build", ""), not known.get("format", 0)),
                known.get("num_steps", 0),
            )
            found[known["step"]] = _Was(loss, known["parameters"], *of)
    return found


def _compared(step: int, was: _Was, loss: float, parameters: str) -> dict[str, Any]:
    """Return the comparison of a batch. Other code may round otherwise, so weights have to be equal
    only where the same build computes them, on the same number of ranks."""
    exact = was.parameters == parameters and was.loss == loss
    least = LOSS_TOLERANCE if was.num_ranks > 1 else _OTHER_CODE
    near = was.loss is not None and math.isclose(
        was.loss, loss, rel_tol=LOSS_TOLERANCE, abs_tol=least
    )
    return {
        "step": step,
        "num_ranks": was.num_ranks,
        "loss": [was.loss, loss],
        "parameters": [was.parameters, parameters],
        "builds": [was.build or f"an earlier version (format {int(not was.is_old)})", build()],
        "other_hash": was.is_old,
        "bit_for_bit": exact,
        "passed": exact or ((was.num_ranks > 1 or was.build != build()) and near),
    }
