"""The simulated episodes: their lengths, records without content, and the player in virtual time
(turns on an engine, tools between them, instead of agents and environments)."""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from agentgym_rl.core import NOT_SAMPLED, IntArray, Outcome, Row, Task, Trajectory
from agentgym_rl.gateway import SessionSampling
from agentgym_rl.gym import SandboxStats

from .clock import Cores, Process
from .engine import SimulatedFleet
from .rates import LengthRates, SandboxRates


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRow(Row):
    """A row of some length; each array repeats one number without using memory for it, except the
    tokens of a recorded row."""

    trained: int = 0
    group: int = -1
    """The number of the row's task; -1 for a recorded row, whose shared beginning follows from its
    tokens."""
    prompt: int = 0
    """The number of first tokens that it has in common with rows of its group."""

    @property
    def num_trained(self) -> int:
        return self.trained

    @property
    def beginning(self) -> IntArray:
        if self.group < 0:
            return self.tokens
        found = self.tokens.copy()
        found[: self.prompt] = -1 - self.group
        return found


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedTrajectory(Trajectory):
    """An episode of one row."""

    versions: Sequence[int] = ()

    @property
    def num_trained(self) -> int:
        return self.rows[0].num_trained

    @property
    def trained_versions(self) -> list[int]:
        return list(self.versions)

    @property
    def oldest_version(self) -> int | None:
        return min(self.versions) if self.num_trained else None


@lru_cache(maxsize=100_000)
def row(tokens: int, trained: int) -> SimulatedRow:
    """Return a row of `tokens` tokens, `trained` of which train."""

    def all(value: float, dtype: type[np.generic]) -> Any:
        return np.broadcast_to(np.asarray(value, dtype), (tokens,))

    return SimulatedRow(
        tokens=all(0, np.int32),
        loss_mask=all(0, np.bool_),
        behavior_logprobs=all(0, np.float32),
        policy_versions=all(NOT_SAMPLED, np.int32),
        admitted_versions=all(NOT_SAMPLED, np.int32),
        temperatures=all(0, np.float32),
        turn_ids=all(-1, np.int32),
        times_s=all(0, np.float64),
        trained=trained,
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """A reply of the model."""

    context: int
    """The tokens of its prompt, including all earlier turns."""
    sampled: int
    before_s: float = 0.0
    """The seconds of tools and environments before it (without the rollout's own computing)."""


class Recorded(NamedTuple):
    """A recorded episode."""

    turns: Sequence[Turn]
    reward: float
    tail: int
    """The number of tokens after the last reply."""
    tokens: IntArray
    """The tokens of the row of the last reply."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An episode without its content."""

    turns: Sequence[Turn]
    reward: float
    trained: int
    """The number of trained tokens."""
    tokens: int
    """The tokens of its row: the prompt, the replies, and the messages between them."""
    recorded: IntArray | None = field(default=None, compare=False)
    """The ids of these tokens, if they are known."""

    def row(self, group: int, member: int) -> SimulatedRow:
        """Return the row of this episode. Tokens that are not known are the same number all along,
        another one in each row."""
        plain = row(self.tokens, self.trained)
        if self.recorded is not None:
            return replace(plain, tokens=self.recorded)
        number = np.array((group << 10 | member) & 0x7FFFFFFF, np.int32)
        tokens = np.broadcast_to(number, (self.tokens,))
        return replace(plain, tokens=tokens, group=group, prompt=self.turns[0].context)


class Shapes(Protocol):
    """A source of episodes; the same arguments always give the same episode."""

    def shape(self, group: int, member: int) -> Shape:
        """Return member number `member` of the group of task number `group`."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits at which a run cuts episodes off."""

    max_tokens: int
    max_model_len: int

    def cut(self, turns: Sequence[Turn], reward: float, *, tail: int = 0) -> Shape:
        """Return an episode of these turns with no reply over `max_tokens`, no context over
        `max_model_len`, and `tail` tokens after the last reply."""
        kept: list[Turn] = []
        shift = 0
        for turn in turns:
            context = turn.context - shift
            room = self.max_model_len - context
            if room < 1 and kept:
                break
            sampled = max(1, min(turn.sampled, self.max_tokens, max(room, 1)))
            shift += turn.sampled - sampled
            kept.append(Turn(context, sampled, turn.before_s))
        last = kept[-1]
        trained = sum(turn.sampled for turn in kept)
        return Shape(kept, reward, trained, last.context + last.sampled + tail)


@dataclass(frozen=True, slots=True)
class DrawnShapes:
    """A source of episodes whose lengths are drawn from the distributions of `LengthRates`."""

    rates: LengthRates
    limits: Limits
    _: KW_ONLY
    seed: int

    def shape(self, group: int, member: int) -> Shape:
        rates = self.rates
        task = random.Random(f"{self.seed}/{group}")
        its = random.Random(f"{self.seed}/{group}/{member}")
        shared, own = math.sqrt(rates.task_share), math.sqrt(1 - rates.task_share)
        common = task.gauss(0, 1)
        turns: list[Turn] = []
        context = rates.prompt_tokens
        for number in range(_geometric(its, rates.turns)):
            deviation = shared * common + own * its.gauss(0, 1)
            sampled = max(1, round(rates.reply_tokens * math.exp(rates.reply_sigma * deviation)))
            before_s = rates.tool_s * math.exp(rates.tool_sigma * its.gauss(0, 1)) if number else 0
            turns.append(Turn(context, sampled, before_s))
            context += sampled + rates.tool_tokens
        learns = task.random() < rates.learning_share
        return self.limits.cut(turns, float(learns and member == 0))


def _geometric(source: random.Random, mean: float) -> int:
    """Draw a geometric number, 1 or more, of this mean."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1 - source.random()) / math.log(1 - 1 / mean))


class RecordedShapes:
    """A source that draws from a run's recorded episodes: a group is played as one recorded at
    about the same part of the run, each member as one of that group's members. An episode that is
    cut shorter than recorded gets the lowest recorded reward."""

    WINDOW = 2
    """The steps to either side from which a group may be drawn."""

    def __init__(
        self,
        groups: Mapping[int, Sequence[Sequence[Recorded]]],
        limits: Limits,
        *,
        groups_per_batch: int,
        steps: int,
        seed: int,
    ) -> None:
        """Spread the recorded `groups` over `steps` batches. `groups` maps each step to its trained
        groups."""
        self._steps = sorted(groups)
        self._groups = groups
        self._limits = limits
        self._groups_per_batch = groups_per_batch
        self._planned = steps
        self._seed = seed
        everyone = [member for of in groups.values() for group in of for member in group]
        self._lowest = min((member.reward for member in everyone), default=0.0)

    def shape(self, group: int, member: int) -> Shape:
        task = random.Random(f"{self._seed}/{group}")
        part = min(group // self._groups_per_batch / max(1, self._planned - 1), 1.0)
        middle = round(part * (len(self._steps) - 1))
        nearby = self._steps[max(0, middle - self.WINDOW) : middle + self.WINDOW + 1]
        members = task.choice([found for step in nearby for found in self._groups[step]])
        # The members of a group are different recorded ones, as far as there are so many.
        order = task.sample(range(len(members)), len(members))
        turns, reward, tail, tokens = members[order[member % len(order)]]
        shape = self._limits.cut(turns, reward, tail=tail)
        if shape.trained < sum(turn.sampled for turn in turns):
            return replace(shape, reward=self._lowest)  # an episode cut off has no answer
        return replace(shape, recorded=tokens if len(tokens) == shape.tokens else None)


class SimulatedSandboxes:
    """The places of sandboxes, each for one program at a time, and the time that they take."""

    def __init__(self, rates: SandboxRates, cores: Cores) -> None:
        self.rates = rates
        self.stats = SandboxStats()
        self._cores = cores
        self._places = asyncio.Semaphore(rates.at_once)

    @asynccontextmanager
    async def one(self, spent_s: dict[str, float]) -> AsyncGenerator[None]:
        """Hold a sandbox, once it is the caller's turn, from its start on; add what the episode has
        spent in line, and on the start."""
        clock = asyncio.get_running_loop().time
        asked_s = clock()
        self.stats.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.stats.waiting -= 1
        spent_s["in line"] += clock() - asked_s
        self.stats.in_use += 1
        try:
            await self.work("start", self.rates.start_s, spent_s)
            yield
        finally:
            self.stats.in_use -= 1
            self._places.release()

    async def work(self, what: str, seconds: float, spent_s: dict[str, float]) -> None:
        """Run a program that takes `seconds` undisturbed; add what it has taken."""
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        await self._cores.work(seconds, demand=self.rates.cpu)
        spent_s[what] += clock() - begun_s


@dataclass(slots=True)
class SimulatedPlayer:
    """A player of the episodes of `shapes`, without an agent and its environment (see
    episode.Player)."""

    shapes: Shapes
    fleet: SimulatedFleet
    process: Process
    turn_s: float
    """The time of `process` per turn: half before it, half after."""
    sandboxes: SimulatedSandboxes | None = None
    """The sandboxes of episodes that hold some."""
    longest_episode_s: float = 0.0
    turns: list[float] = field(default_factory=list[float])
    """The seconds from the last token of a turn to the last token of the next."""
    played: int = 0
    """The number of episodes that have ended."""
    spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The seconds of all episodes together: in all, and of these in line, start, tools, tests."""

    async def play(
        self, task: Task, *, episode_id: str, group_id: str, sampling: SessionSampling
    ) -> SimulatedTrajectory:
        """Play one member of the group of `task`."""
        clock = asyncio.get_running_loop().time
        member = int(episode_id.rpartition("-")[2])
        shape = self.shapes.shape(int(task.id), member)
        start = clock()
        versions: set[int] = set()
        ended = None
        spent_s: defaultdict[str, float] = defaultdict(float)
        async with AsyncExitStack() as held:
            for number, turn in enumerate(shape.turns):
                if self.sandboxes is None:
                    if turn.before_s > 0:
                        await asyncio.sleep(turn.before_s)
                elif number:
                    if number == 1:  # the first tool call
                        await held.enter_async_context(self.sandboxes.one(spent_s))
                    await self.sandboxes.work("tools", turn.before_s, spent_s)
                await self.process.work(self.turn_s / 2)
                sampled = self.fleet.sample(episode_id, group_id, turn.context, turn.sampled)
                versions |= await sampled
                if ended is not None:
                    self.turns.append(clock() - ended)
                ended = clock()
                await self.process.work(self.turn_s / 2)
        if self.sandboxes is not None:
            async with self.sandboxes.one(spent_s):
                await self.sandboxes.work("tests", self.sandboxes.rates.verify_s, spent_s)
        self.played += 1
        for part, seconds in spent_s.items():
            self.spent_s[part] += seconds
        self.spent_s["all"] += clock() - start
        self.longest_episode_s = max(self.longest_episode_s, clock() - start)
        return SimulatedTrajectory(
            episode_id=episode_id,
            group_id=group_id,
            task_id=task.id,
            outcome=Outcome.COMPLETED,
            reward=shape.reward,
            rows=[shape.row(int(task.id), member)],
            num_turns=len(shape.turns),
            versions=sorted(versions),
        )

    async def wait_ready(self) -> None:
        """Return at once: simulated engines always serve."""
