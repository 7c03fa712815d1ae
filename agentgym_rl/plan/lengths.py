"""The lengths of episodes, and the player of episodes in virtual time: turns on an engine, tools
between them, instead of agents and environments."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agentgym_rl.core.task import Task
from agentgym_rl.core.trajectory import Outcome
from agentgym_rl.gateway.session.sampling import SessionSampling

from .cores import Process
from .fleet import SimulatedFleet
from .rates import LengthRates
from .records import SimulatedTrajectory, row


@dataclass(frozen=True, slots=True)
class Turn:
    """A reply of the model."""

    context: int
    """The tokens of its prompt, including all earlier turns."""
    sampled: int
    before_s: float = 0.0
    """The seconds of tools and environments before it (without the rollout's own computing)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An episode without its content."""

    turns: Sequence[Turn]
    reward: float
    trained: int
    """The number of trained tokens."""
    tokens: int
    """The tokens of its row: the prompt, the replies, and the messages between them."""


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


class DrawnShapes:
    """A source of episodes whose lengths are drawn from the distributions of `LengthRates`."""

    def __init__(self, rates: LengthRates, limits: Limits, *, seed: int) -> None:
        self._rates = rates
        self._limits = limits
        self._seed = seed

    def shape(self, group: int, member: int) -> Shape:
        rates = self._rates
        task = random.Random(f"{self._seed}/{group}")
        its = random.Random(f"{self._seed}/{group}/{member}")
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
        return self._limits.cut(turns, float(learns and member == 0))


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
        groups: Mapping[int, Sequence[Sequence[tuple[Sequence[Turn], float, int]]]],
        limits: Limits,
        *,
        groups_per_batch: int,
        steps: int,
        seed: int,
    ) -> None:
        """Spread the recorded `groups` over `steps` batches. `groups` maps each step to its trained
        groups, each a list of (turns, reward, tokens after the last reply)."""
        self._steps = sorted(groups)
        self._groups = groups
        self._limits = limits
        self._groups_per_batch = groups_per_batch
        self._planned = steps
        self._seed = seed
        everyone = [member for of in groups.values() for group in of for member in group]
        self._lowest = min((reward for _, reward, _ in everyone), default=0.0)

    def shape(self, group: int, member: int) -> Shape:
        task = random.Random(f"{self._seed}/{group}")
        part = min(group // self._groups_per_batch / max(1, self._planned - 1), 1.0)
        middle = round(part * (len(self._steps) - 1))
        nearby = self._steps[max(0, middle - self.WINDOW) : middle + self.WINDOW + 1]
        members = task.choice([found for step in nearby for found in self._groups[step]])
        its = random.Random(f"{self._seed}/{group}/{member}")
        turns, reward, tail = its.choice(members)
        shape = self._limits.cut(turns, reward, tail=tail)
        if shape.trained == sum(turn.sampled for turn in turns):
            return shape
        return replace(shape, reward=self._lowest)  # an episode cut off has no answer


class SimulatedPlayer:
    """A player of the episodes of `shapes`, without an agent and its environment (see
    episode.Player)."""

    def __init__(
        self, shapes: Shapes, fleet: SimulatedFleet, process: Process, *, turn_s: float
    ) -> None:
        """Create a player that takes `turn_s` of `process` per turn: half before it, half after."""
        self.longest_episode_s = 0.0
        self.longest_turn_s = 0.0
        self.turns: list[float] = []
        """The seconds from the last token of a turn to the last token of the next."""
        self._shapes = shapes
        self._fleet = fleet
        self._process = process
        self._turn_s = turn_s

    async def play(
        self, task: Task, *, episode_id: str, group_id: str, sampling: SessionSampling
    ) -> SimulatedTrajectory:
        """Play one member of the group of `task`."""
        clock = asyncio.get_running_loop().time
        shape = self._shapes.shape(int(task.id), int(episode_id.rpartition("-")[2]))
        start = clock()
        versions: set[int] = set()
        ended = None
        for turn in shape.turns:
            if turn.before_s > 0:
                await asyncio.sleep(turn.before_s)
            asked = clock()
            await self._process.work(self._turn_s / 2)
            versions |= await self._fleet.sample(episode_id, turn.context, turn.sampled)
            if ended is not None:
                self.turns.append(clock() - ended)
            ended = clock()
            await self._process.work(self._turn_s / 2)
            self.longest_turn_s = max(self.longest_turn_s, clock() - asked)
        self._fleet.forget(episode_id)
        self.longest_episode_s = max(self.longest_episode_s, clock() - start)
        return SimulatedTrajectory(
            episode_id=episode_id,
            group_id=group_id,
            task_id=task.id,
            outcome=Outcome.COMPLETED,
            reward=shape.reward,
            rows=[row(shape.tokens, shape.trained)],
            num_turns=len(shape.turns),
            versions=sorted(versions),
        )

    async def wait_ready(self) -> None:
        """Return at once: simulated engines always serve."""
