"""Rows for the teachers of real servers, and the log-probs of the same model, frozen in this
process."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from arl_objectives.keys.teacher import TeacherConfig
from arl_objectives.served_teachers import ServedTeachers

from agentgym_rl.algo import pack_rows
from agentgym_rl.core import Row, Task
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.trainer import Policy, join_world
from tests.kit.groups import make_group, make_row

NOISE = 1e-4
"""The difference of log-probs, in nats, that two right forwards in float32 may have."""


def rows_of(*lengths: int) -> list[Row]:
    """Return rows of tokens that begin alike, so that prefix caches are used; every fourth token
    trains."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(4, 460, max(lengths)).astype(np.int32)
    found: list[Row] = []
    for length in lengths:
        trained = np.arange(length) % 4 == 1
        kept = tokens[:length].copy()
        kept[length // 2 :] = draw.integers(4, 460, length - length // 2)
        row = make_row([0] * (length - 1), prompt=1)
        heat = trained.astype(np.float32)
        found.append(replace(row, tokens=kept, loss_mask=trained, temperatures=heat))
    return found


def taught(url: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their log-probs under a server of the bundled model, requested all at
    once."""

    async def ask() -> list[Row]:
        member = replace(make_group("g", [0]).members[0], rows=rows, env_id="math")
        config = TeacherConfig.model_validate({"models": url})
        async with asyncio.timeout(250), ServedTeachers(config) as teachers:
            return list((await teachers.added(member, Task("t", 0, {}))).rows)

    return asyncio.run(ask())


def furthest(rows: Sequence[Row]) -> float:
    """Return the largest difference between a server's log-probs and those of the frozen policy, in
    nats."""
    with join_world() as world, torch.no_grad():
        policy = Policy.load(BUNDLED, world, master_dtype=torch.float32)
        frozen = [policy.logprobs(pack_rows([row])).numpy() for row in rows]
    worst = 0.0
    for row, expected in zip(rows, frozen, strict=True):
        assert row.teacher_logprobs is not None
        told = row.teacher_logprobs.logprobs[:, 0]
        assert np.isnan(told[~row.loss_mask]).all()
        worst = max(worst, float(np.abs(told[row.loss_mask] - expected).max()))
    return worst
