"""A trainer in virtual time: it takes real batches and packs them as real trainers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

from agentgym_rl.algo.balance import fill_bins
from agentgym_rl.algo.prefixes import Chain, chained, fill_shared
from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.controller.controller import Controller
from agentgym_rl.core.batch import BatchRow, BatchShard, StepReport
from agentgym_rl.core.trajectory import Row
from agentgym_rl.storage.metrics import COMPUTE_PHASES

from .clock import Cores, Process
from .engine import SimulatedFleet
from .episodes import SimulatedRow
from .rates import Rates, TrainerRates

Packing = Callable[[Sequence[Row], int], list[int]]
"""A function from rows and a budget of tokens to the computed tokens of each micro-batch."""


def packed_whole(rows: Sequence[Row], budget: int) -> list[int]:
    """Return the tokens of micro-batches of rows that are computed one by one."""
    lengths = [len(row) for row in rows]
    return [sum(lengths[i] for i in members) for members in fill_bins(lengths, budget)]


def packed_once(rows: Sequence[Row], budget: int) -> list[int]:
    """Return the tokens of micro-batches in which beginnings that rows share are computed once."""
    lengths = [len(row) for row in rows]
    chain = _chain(rows)
    bins = fill_shared(lengths, chain, budget)
    found: list[int] = []
    for members in bins:
        its = _chain([rows[i] for i in members]) if len(bins) > 1 else chain
        found.append(sum(lengths[i] for i in members) - sum(its.shared))
    return found


def _chain(rows: Sequence[Row]) -> Chain:
    """Return the chain of rows: simulated ones without tokens share the prompt of their group."""
    drawn = [it for it in rows if isinstance(it, SimulatedRow) and it.group >= 0]
    if len(drawn) < len(rows):
        return chained([row.tokens for row in rows])
    order = sorted(range(len(drawn)), key=lambda i: drawn[i].group)
    shared = [
        min(drawn[a].prompt, drawn[b].prompt) if drawn[a].group == drawn[b].group else 0
        for a, b in pairwise(order)
    ]
    return Chain(order, [0, *shared][: len(order)])


def packing_of(config: TrainerConfig, rates: TrainerRates) -> Packing:
    """Return the packing of the ranks of a run."""
    shares = rates.shares_prefixes and config.attention == "rows"
    return packed_once if shares else packed_whole


@dataclass(frozen=True, slots=True)
class Step:
    """The record of a simulated batch; all times are virtual seconds."""

    reported_s: float
    """The time of its report, when its version is on every engine."""
    intervals: list[tuple[str, float, float]]
    """The (phase, start, end) of the phases of `phases.jsonl`."""
    trained_tokens: int
    overlapped_tokens: float
    """The tokens sampled while the trainer computed."""
    micro_batches: int

    def seconds(self, *phases: str) -> float:
        return sum(end - start for name, start, end in self.intervals if name in phases)


@dataclass(slots=True)
class SimulatedTrainer:
    """The ranks of a simulated trainer, all in step."""

    config: TrainerConfig
    algo: AlgoConfig
    rates: Rates
    controller: Controller
    fleet: SimulatedFleet
    cores: Cores
    process: Process
    """The rollout's process, which assembles batches."""
    packing: Packing
    steps: list[Step] = field(default_factory=list[Step])
    _intervals: list[tuple[str, float, float]] = field(default_factory=list)
    _overlapped: float = 0.0
    _micro_batches: int = 0

    async def run(self, batches: int) -> None:
        """Train this number of batches."""
        for step in range(batches):
            self._intervals, self._overlapped, self._micro_batches = [], 0.0, 0
            shards = await self._wait(step)
            await self._train(shards)
            await self._publish(step + 1)
            await self._report(step, shards[0])

    async def _wait(self, step: int) -> list[BatchShard]:
        start = _now_s()
        shards: list[BatchShard] = []
        for rank in range(self.config.num_ranks):
            shard = None
            while shard is None:
                shard = await self.controller.batch(step, rank)
            shards.append(shard)
        seconds = self.rates.rollout.handover_s_per_episode * len(shards[0].rewards)
        await self.process.work(seconds, urgent=True)
        self._intervals.append(("rollout_wait", start, _now_s()))
        return shards

    async def _train(self, shards: Sequence[BatchShard]) -> None:
        rates = self.rates.trainer
        each_s, token_s = rates.forward_microbatch_s, rates.forward_s_per_token
        if any(later := proximal_rows(shards, self.algo)):
            await self._compute("proximal", self._seconds(later, each_s, token_s))
        if self.algo.kl.coef:
            flat = [[item for part in shard.minibatches for item in part] for shard in shards]
            await self._compute("reference", self._seconds(flat, each_s, token_s))
        for parts in learning_passes(shards, self.config, self.algo):
            seconds = self._seconds(parts, rates.train_microbatch_s, rates.train_s_per_token)
            await self._compute("forward_backward", seconds)
            await self._compute("optimizer", rates.optimizer_s)

    def _seconds(self, parts: Sequence[Sequence[BatchRow]], each_s: float, token_s: float) -> float:
        budget = self.config.max_tokens_per_microbatch
        rounds = rounds_of(parts, budget, packing=self.packing)
        self._micro_batches += len(rounds)
        return sum(each_s + token_s * tokens for tokens in rounds)

    async def _compute(self, phase: str, seconds: float) -> None:
        start, before = _now_s(), self.fleet.count_tokens()
        busy = self.config.num_ranks * self.config.num_threads
        await self.cores.work(seconds, demand=busy)
        self._intervals.append((phase, start, _now_s()))
        if phase in COMPUTE_PHASES:
            self._overlapped += self.fleet.count_tokens() - before

    async def _publish(self, version: int) -> None:
        start, weights = _now_s(), self.rates.weights
        names = await self.fleet.begin_publication(version)
        await self.cores.work(weights.stage_s)
        await self.fleet.swap(version, pause_s=weights.pause_s)
        await self.fleet.end_publication(version, served=names, failed={})
        self._intervals.append(("weight_sync", start, _now_s()))

    async def _report(self, step: int, shard: BatchShard) -> None:
        await self.cores.work(self.rates.trainer.between_s)
        await self.controller.report(
            StepReport(
                step=step,
                version=step + 1,
                metrics={"grad_norm": 1.0, "lr": 1.0},  # else it is warned of as teaching nothing
                group_ids=list(dict.fromkeys(shard.group_ids)),
            ),
            token=self.controller.token,
        )
        self.steps.append(
            Step(
                _now_s(),
                self._intervals,
                shard.num_trained_tokens,
                self._overlapped,
                self._micro_batches,
            )
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def learning_passes(
    shards: Sequence[BatchShard], trainer: TrainerConfig, algo: AlgoConfig
) -> Iterator[list[list[BatchRow]]]:
    """Yield the rows of each rank for every pass that computes gradients: one per epoch and
    mini-batch with such rows."""
    learning = _learning_episodes(shards[0], algo)
    for _ in range(trainer.epochs):
        for number in range(trainer.num_minibatches):
            parts = [
                [item for item in shard.minibatches[number] if learning[item.episode]]
                for shard in shards
            ]
            if any(parts):
                yield parts


def proximal_rows(shards: Sequence[BatchShard], algo: AlgoConfig) -> list[list[BatchRow]]:
    """Return the rows of each rank that have a pass for their proximal log-probs: those that learn,
    without the first minibatch, which computes its own; all, if a reward depends on them."""
    learning = _learning_episodes(shards[0], algo)
    early = bool(algo.kl.coef) and algo.kl.placement == "reward"
    return [
        [
            item
            for part in shard.minibatches[0 if early else 1 :]
            for item in part
            if early or learning[item.episode]
        ]
        for shard in shards
    ]


def _learning_episodes(shard: BatchShard, algo: AlgoConfig) -> list[bool]:
    """Return for each episode of the batch whether the trainer computes gradients for it: if its
    advantage is not zero, or the loss has other terms than advantages."""
    in_group = algo.baseline in ("mean", "leave_one_out")
    if not in_group or algo.kl.coef or algo.entropy_coef:
        return [True] * len(shard.rewards)
    rewards: dict[str, set[float]] = {}
    for group_id, reward in zip(shard.group_ids, shard.rewards, strict=True):
        rewards.setdefault(group_id, set()).add(reward)
    return [len(rewards[group_id]) > 1 for group_id in shard.group_ids]


def rounds_of(parts: Sequence[Sequence[BatchRow]], budget: int, *, packing: Packing) -> list[int]:
    """Return the computed tokens of each micro-batch of a pass over each rank's rows. Ranks
    synchronize at every micro-batch, so the rank with the most tokens counts."""
    filled = [packing([item.row for item in items], budget) if items else [] for items in parts]
    return [max(sizes) for sizes in zip_longest(*filled, fillvalue=0)]
