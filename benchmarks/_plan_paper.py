"""The AReaL paper's setting (arXiv:2505.24298), simulated: R1-distilled Qwen on H800s, three
quarters of them engines, batches of 128 tasks x 16 episodes.

Not in the paper, or not known here, and so assumed: the lengths' distribution (lognormal), how many
episodes are in flight (as many as the bound on staleness allows, up to four batches), and every
rate (data sheets, see agentgym_rl/plan/rates.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_rl.config import Config, load_config
from agentgym_rl.core.trajectory import Row
from agentgym_rl.plan.episodes import DrawnShapes, Limits
from agentgym_rl.plan.rates import HardwareRates, LengthRates, Rates, rates_of
from agentgym_rl.plan.simulation import Prediction, simulate
from agentgym_rl.plan.trainer import Packing

from ._common import say

BOUNDS = (0, 1, 2, 4, 8, 16, None)
"""On staleness; None: there is none."""
PAPER = {
    "asynchronous over synchronous": "up to 2.77",
    "interrupted over waiting": "1.12 (1.5B), 1.17 (7B)",
    "dynamic over fixed micro-batches": "1.30 on average",
}
_NEVER = 1_000_000
_BATCHES = 6
"""That count, after those in which a run gets going."""
_IN_FLIGHT = 4
"""Batches, at most."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes of the experiment."""

    parameters: float = 7.6e9
    kv_bytes_per_token: float = 57_344.0
    gpus: int = 128
    groups: int = 128
    group_size: int = 16
    context: int = 16_384
    prompt: int = 1_024
    reply: float = 5_500.0
    """Median."""
    sigma: float = 0.8
    budget: int = 32_768
    """Tokens of a micro-batch."""

    @property
    def rates(self) -> Rates:
        lengths = LengthRates(
            prompt_tokens=self.prompt, reply_tokens=self.reply, reply_sigma=self.sigma
        )
        hardware = HardwareRates(
            gpu="H800",
            parameters=self.parameters,
            kv_bytes_per_token=self.kv_bytes_per_token,
        )
        rates = rates_of(hardware)
        trainer = rates.trainer.model_copy(update={"shares_prefixes": False})  # theirs does not
        return rates.model_copy(update={"lengths": lengths, "trainer": trainer})

    def config(self, bound: int | None, *, interrupt: str, colocated: bool = False) -> Config:
        """A run of it. `colocated`: all GPUs sample, then all train, as synchronous systems do;
        else they are split 3:1."""
        engines = self.gpus if colocated else self.gpus * 3 // 4
        ahead = _IN_FLIGHT if bound is None else min(bound + 1, _IN_FLIGHT)
        return load_config(
            None,
            {
                "steps": 1000,
                "engine.type": "vllm",
                "engine.num_servers": engines,
                "engine.max_num_seqs": 256,
                "engine.max_model_len": self.context,
                "weights.transport": "nccl",
                "trainer.num_ranks": self.gpus if colocated else self.gpus - engines,
                "trainer.max_tokens_per_microbatch": self.budget,
                "rollout.groups_per_batch": self.groups,
                "rollout.group_size": self.group_size,
                "rollout.max_tokens": self.context - self.prompt,
                "rollout.max_staleness": _NEVER if bound is None else bound,
                "rollout.max_concurrent": ahead * self.groups,
                "rollout.interrupt": interrupt,
            },
        )


def paper_rows(
    setting: Setting | None = None, *, bounds: Sequence[int | None] = BOUNDS
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """A row for each bound, with interruption and without it, and the paper's three ratios."""
    setting = setting or Setting()
    rows = [_row(setting, "synchronous, all GPUs take turns", 0, "wait", colocated=True)]
    for bound in bounds:
        for interrupt in ("recompute", "wait"):
            rows.append(_row(setting, "3:1", bound, interrupt))
    dynamic = _row(setting, "dynamic micro-batches", 4, "recompute")
    fixed = _row(setting, "fixed micro-batches", 4, "recompute", packing=_fixed(setting))
    rows += [dynamic, fixed]
    asynchronous = [r for r in rows if r["system"] == "3:1" and r["interrupt"] == "recompute"]
    interrupted = [r["sampled_tokens_per_s"] for r in asynchronous if r["bound"] not in (0, None)]
    waiting = [
        r["sampled_tokens_per_s"]
        for r in rows
        if r["system"] == "3:1" and r["interrupt"] == "wait" and r["bound"] not in (0, None)
    ]
    best = max(row["episodes_per_s"] for row in asynchronous)
    ratios = {
        "asynchronous over synchronous": best / rows[0]["episodes_per_s"],
        "interrupted over waiting": sum(interrupted) / max(sum(waiting), 1e-9),
        "dynamic over fixed micro-batches": (
            fixed["training_s_per_million_tokens"] / dynamic["training_s_per_million_tokens"]
        ),
    }
    return rows, {name: round(value, 2) for name, value in ratios.items()}


def _row(
    setting: Setting,
    system: str,
    bound: int | None,
    interrupt: str,
    *,
    colocated: bool = False,
    packing: Packing | None = None,
) -> dict[str, Any]:
    config, rates = setting.config(bound, interrupt=interrupt, colocated=colocated), setting.rates
    limits = Limits(config.rollout.max_tokens, setting.context)
    shapes = DrawnShapes(rates.lengths, limits, seed=1)
    skip = 2 + (_IN_FLIGHT if bound is None else min(bound, 8))
    more: dict[str, Any] = {} if packing is None else {"packing": packing}
    batches = skip + _BATCHES
    found: Prediction = simulate(config, rates, shapes, skip=skip, batches=batches, **more)
    say(f"{system}, bound {bound}, {interrupt}: {found.episodes_per_s:.2f} episodes/s")
    trained = found.trained_tokens_per_s * found.step_s
    return {
        "part": "paper",
        "system": system,
        "bound": bound,
        "interrupt": interrupt,
        "episodes_per_s": round(found.episodes_per_s, 3),
        "sampled_tokens_per_s": round(found.generated_tokens_per_s),
        "step_s": round(found.step_s, 1),
        "staleness_mean": round(found.staleness_mean, 2),
        "staleness_max": found.staleness_max,
        "dropped_groups": found.dropped_groups,
        "trainer_idle": round(found.trainer_idle, 3),
        "engine_idle": round(found.engine_idle, 3),
        "requests_per_engine": round(found.requests_per_engine, 1),
        "weight_sync_s": round(found.weight_sync_s, 1),
        "training_s_per_million_tokens": round(found.compute_s / trained * 1e6, 3),
    }


def _fixed(setting: Setting) -> Packing:
    """As many rows to a micro-batch as fit were each of the longest, in the order they come: what
    a fixed number of micro-batches has to be to be sure of its memory."""
    rows = max(1, setting.budget // setting.context)

    def pack(each: Sequence[Row], budget: int) -> list[int]:
        lengths = [len(row) for row in each]
        return [sum(lengths[start : start + rows]) for start in range(0, len(lengths), rows)]

    return pack
