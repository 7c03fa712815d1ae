"""A trainer in virtual time, which takes real batches and packs them as real trainers do; and the
memory of a real one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from pathlib import Path

from arl_meters.keys import LayerKeys
from arl_optimizers import STATE_BYTES

from agentgym_rl.algo import fill_bins, fill_shared
from agentgym_rl.algo.prefixes import Chain, chained
from agentgym_rl.config import AlgoConfig, RolloutConfig, TrainerConfig
from agentgym_rl.controller import Metrics, Ranks
from agentgym_rl.core import (
    BatchRow,
    BatchShard,
    Published,
    Row,
    StepReport,
    tensor_heads,
    text_settings,
)
from agentgym_rl.core.model_folder import Shapes
from agentgym_rl.storage import COMPUTE_PHASES

from .clock import Cores, Process
from .engine import SimulatedFleet
from .episodes import SimulatedRow
from .rates import Rates

Packing = Callable[[Sequence[Row], int, int], list[int]]
"""A function from rows, a budget of tokens and the least number of micro-batches, if they can be
smaller then, to the computed tokens of each micro-batch."""


def packed_separately(rows: Sequence[Row], budget: int, least: int = 1) -> list[int]:
    """Return the tokens of micro-batches of rows that are computed one by one."""
    lengths = [len(row) for row in rows]
    bins = fill_bins(lengths, budget, least=least)
    return [sum(lengths[i] for i in members) for members in bins]


def packed_once(rows: Sequence[Row], budget: int, least: int = 1) -> list[int]:
    """Return the tokens of micro-batches in which beginnings that rows share are computed once."""
    lengths = [len(row) for row in rows]
    chain = _chain(rows)
    bins = fill_shared(lengths, chain, budget, least=least)
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
class SimulatedTrainer(Ranks):
    """The ranks of a simulated trainer, all in step, and the engines that they publish to."""

    config: TrainerConfig
    algo: AlgoConfig
    rates: Rates
    fleet: SimulatedFleet
    cores: Cores
    process: Process
    """The rollout's process, which assembles batches."""
    packing: Packing
    batches: int
    """The number of batches after which `done` is set."""
    steps: list[Step] = field(default_factory=list[Step])
    done: asyncio.Event = field(default_factory=asyncio.Event)
    _intervals: list[tuple[str, float, float]] = field(default_factory=list)
    _overlapped: float = 0.0
    _micro_batches: int = 0
    _tokens: int = 0
    _free_s: float = field(default_factory=lambda: _now_s())
    """The time since which the ranks wait for a batch."""
    _began_s: float = 0.0
    """The time at which the publication began."""
    _version: int = 0

    async def train(self, step: int, shards: Sequence[BatchShard]) -> StepReport:
        self._intervals, self._overlapped, self._micro_batches = [], 0.0, 0
        seconds = self.rates.rollout.handover_s_per_episode * len(shards[0].rewards)
        await self.process.work(seconds, urgent=True)
        self._intervals.append(("rollout_wait", self._free_s, _now_s()))
        await self._train(shards)
        self._tokens = shards[0].num_trained_tokens
        return StepReport(
            step=step,
            version=step + 1,
            metrics={"grad_norm": 1.0, "lr": 1.0},  # else it is warned of as teaching nothing
            group_ids=list(dict.fromkeys(shards[0].group_ids)),
        )

    def reported(self) -> None:
        """Keep the batch that was trained last, which is in the log now."""
        of = (self._intervals, self._tokens, self._overlapped, self._micro_batches)
        self.steps.append(Step(_now_s(), *of))
        self._free_s = _now_s()
        if len(self.steps) == self.batches:
            self.done.set()

    async def _train(self, shards: Sequence[BatchShard]) -> None:
        rates = self.rates.trainer
        each_s, token_s = rates.forward_microbatch_s, rates.forward_s_per_token
        if any(later := proximal_rows(shards, self.algo)):
            await self._compute("proximal", self._seconds(later, each_s, token_s))
        flat = [[item for part in shard.minibatches for item in part] for shard in shards]
        roles = {it.role for it in self.algo.other_models}
        for role in sorted(roles - {"teacher"}):  # of the policy's size
            await self._compute(role, self._seconds(flat, each_s, token_s))
        if times := rates.teacher_passes:
            await self._compute("teacher", times * self._seconds(flat, each_s, token_s))
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

    # ------------------------------------------------------------------ publications
    @property
    def wanted(self) -> bool:
        return False

    @property
    def silent_s(self) -> Mapping[str, float]:
        return self.fleet.silent_s

    async def begin_publication(self, version: int) -> dict[str, str]:
        self._began_s, self._version = _now_s(), version
        return self.fleet.urls

    async def begin_swap(self, version: int, lives: Iterable[str]) -> None:
        pass  # nobody but the fleet uses its engines

    def end_swap(self, version: int, *, served: Iterable[str], failed: Iterable[str]) -> None:
        pass

    async def complete(self, metrics: Metrics) -> Path:
        return Path()  # simulated checkpoints take no time

    async def publish(
        self, version: int, engines: Mapping[str, str], timeout_s: float
    ) -> Published:
        stage_s = self.rates.weights.stage_s
        await self.cores.work(stage_s)
        return Published(0.0, stage_s, {}, {}, self.fleet.waves)

    async def swap(self, engines: Sequence[str]) -> Published:
        await self.fleet.swap(self._version, engines, pause_s=self.rates.weights.pause_s)
        return Published(0.0, 0.0, dict.fromkeys(engines, (0.0, 0.0)), {})

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None:
        self._intervals.append(("weight_sync", self._began_s, _now_s()))
        await self.cores.work(self.rates.trainer.between_s)


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
    early = algo.needs_batch
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
    level = algo.baseline in ("mean", "leave_one_out", "length_weighted")
    others = algo.whitening.over != "none" or bool(algo.reward_parts or algo.advantage)
    if not level or others or algo.uses_every_row or algo.other_models or algo.of_task("", {}):
        return [True] * len(shard.rewards)
    rewards: dict[str, set[float]] = {}
    for group_id, reward in zip(shard.group_ids, shard.rewards, strict=True):
        rewards.setdefault(group_id, set()).add(reward)
    return [len(rewards[group_id]) > 1 for group_id in shard.group_ids]


def rounds_of(parts: Sequence[Sequence[BatchRow]], budget: int, *, packing: Packing) -> list[int]:
    """Return the computed tokens of each micro-batch of a pass over each rank's rows. Ranks
    synchronize at every micro-batch, so the rank with the most tokens counts; one with fewer
    micro-batches makes them smaller, and each begins with its largest."""
    rows = [[item.row for item in items] for items in parts if items]
    filled = [packing(its, budget, 1) for its in rows]
    if len(parts) > 1:
        most = max(map(len, filled), default=0)
        for number, sizes in enumerate(filled):
            if len(sizes) < most:
                filled[number] = packing(rows[number], budget, most)
            filled[number].sort(reverse=True)
    return [max(sizes) for sizes in zip_longest(*filled, fillvalue=0)]


def not_simulated(algo: AlgoConfig, rollout: RolloutConfig) -> Iterator[tuple[str, str]]:
    """Yield the keys of a run that have no effect on its simulation, and what it does instead."""
    if algo.leave_out:
        yield (
            "algo.leave_out",
            "every episode trains, so the trainer is slower here than in the run",
        )
    yield from algo.not_simulated()
    yield from rollout.not_simulated()
    if rollout.group_reward:
        yield "rollout.group_reward", "it takes no time, and changes no reward"


# ------------------------------------------------------------------ memory
FLOAT, HALF = 4, 2
"""The bytes of a number in float32 and in bfloat16."""
_ADAM, _MOMENTUM = 2 * FLOAT, FLOAT
"""The bytes of AdamW's state of a number, and of Muon's."""
_EIGHT_BITS = 2 * (1 + FLOAT / 256)
"""The bytes of a number's state of 8 bits: two codes, and two scales for each block of 256."""
_SMALLEST, _BLOCK = 4096, 256
"""The tensors that have states of 8 bits: of so many numbers, in whole blocks (torchao)."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The numbers of a model."""

    total: int
    hidden: int
    """The numbers of the matrices between embeddings and output layer, without stacks of
    experts."""
    in_blocks: int
    """The numbers of the tensors whose optimizer state may have 8 bits."""

    @classmethod
    def of(cls, shapes: Shapes, *, vocabulary: int = 0) -> ModelSize:
        """Return the numbers of tensors by name, as a model folder has them."""
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        hidden = [
            name
            for name, shape in shapes.items()
            if len(shape) == 2 and shape[0] != vocabulary and ".experts." not in name
        ]
        blocks = [n for n in sizes.values() if n >= _SMALLEST and n % _BLOCK == 0]
        return cls(sum(sizes.values()), sum(sizes[name] for name in hidden), sum(blocks))

    @classmethod
    def of_critic(cls, shapes: Shapes, *, vocabulary: int) -> ModelSize:
        """Return the numbers of the policy with an output layer of one value."""
        tables = [name for name, it in shapes.items() if len(it) == 2 and it[0] == vocabulary]
        rest = {name: shape for name, shape in shapes.items() if name not in tables[1:]}
        found = cls.of(rest, vocabulary=vocabulary)
        return replace(found, total=found.total + (shapes[tables[0]][1] if tables else 0))

    def optimizer_bytes(self, kind: str) -> float:
        """Return the bytes of an optimizer's state (`trainer.optimizer`). A user's own is taken to
        have as much as AdamW."""
        if kind == "muon":
            return _MOMENTUM * self.hidden + _ADAM * (self.total - self.hidden)
        if kind == "adamw8bit":
            return _EIGHT_BITS * self.in_blocks + _ADAM * (self.total - self.in_blocks)
        return STATE_BYTES.get(kind, _ADAM) * self.total

    def frozen_bytes(self, dtype: str) -> int:
        """Return the bytes of weights that never train, of which ranks that compute in bfloat16
        round the matrices of blocks."""
        rounded = self.hidden if dtype == "bfloat16" else 0
        return FLOAT * (self.total - rounded) + HALF * rounded


def shapes_in(folder: Path) -> tuple[Shapes, int]:
    """Return the shapes of the tensors of a model folder, and the size of its vocabulary."""
    shapes = {name: head.shape for name, head in tensor_heads(folder).items()}
    return shapes, int(text_settings(folder).get("vocab_size") or 0)


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """The bytes that a trainer keeps from pass to pass, in all of its ranks together, for one copy
    of the model (`trainer.num_replicas`). The activations of a pass come on top."""

    weights: float
    gradients: float
    optimizer: float
    moving: float
    """The bytes of the reference model that follows the policy."""
    frozen: float
    """The bytes of teachers, and of a reference model that does not change."""
    noted: float
    """The bytes of the copies that `trainer.layer_metrics` compares."""
    critic: float
    """The bytes of a critic, and of the state of its optimizer."""
    critic_gradients: float
    """The bytes of its gradients, which are there while it learns: the policy's are not then."""
    ranks: int
    """The number of ranks that share these bytes."""

    @property
    def rank(self) -> float:
        """Return the bytes of one rank."""
        kept = (self.weights, self.optimizer, self.moving, self.frozen, self.noted, self.critic)
        return (sum(kept) + max(self.gradients, self.critic_gradients)) / self.ranks


def trainer_memory(
    policy: ModelSize,
    adapter: ModelSize | None,
    *,
    moving: ModelSize | None,
    frozen: Sequence[ModelSize],
    trainer: TrainerConfig,
    dtype: str,
    critic: ModelSize | None = None,
) -> TrainerMemory:
    """Return the memory of a trainer whose ranks compute in `dtype`. `adapter`: LoRA's matrices;
    the policy itself is then frozen. All weights of a `critic` train."""
    trained = adapter or policy
    base = policy.frozen_bytes(dtype) if adapter else 0
    return TrainerMemory(
        weights=base + FLOAT * trained.total,
        gradients=FLOAT * trained.total,
        optimizer=trained.optimizer_bytes(trainer.optimizer),
        moving=FLOAT * moving.total if moving else 0,
        frozen=sum(size.frozen_bytes(dtype) for size in frozen),
        noted=FLOAT * trained.total if trainer.part(LayerKeys).layer_metrics else 0,
        critic=FLOAT * critic.total + critic.optimizer_bytes(trainer.optimizer) if critic else 0,
        critic_gradients=FLOAT * critic.total if critic else 0,
        ranks=trainer.num_ranks // trainer.num_replicas,
    )
