"""How long episodes are: what the simulation plays in the place of agents and environments."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .rates import LengthRates


@dataclass(frozen=True, slots=True)
class Turn:
    """A reply of the model."""

    context: int
    """Tokens of its prompt, all that came before it included."""
    sampled: int
    before_s: float = 0.0
    """Of tools and environments before it is asked for (the rollout's own computing is apart)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An episode without its content."""

    turns: Sequence[Turn]
    reward: float
    trained: int
    """Tokens that train."""
    tokens: int
    """Of its row: prompt, replies, and what came between them."""


class Shapes(Protocol):
    """Where episodes come from; the same arguments always give the same one."""

    def shape(self, group: int, member: int) -> Shape:
        """Member number `member` of the group of task number `group`."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run cuts episodes off at."""

    max_tokens: int
    max_model_len: int

    def cut(self, turns: Sequence[Turn], reward: float, *, tail: int = 0) -> Shape:
        """An episode of these turns: no reply over `max_tokens`, no context over `max_model_len`,
        and `tail` tokens after the last reply."""
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
    """Lengths as `LengthRates` has them."""

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
    """1 or more, of this mean."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1 - source.random()) / math.log(1 - 1 / mean))


class RecordedShapes:
    """Episodes of a run, drawn again: a group is played as one that was recorded at about the same
    part of the run, each member as one of its members. One that has to be shorter than it was is
    paid the least that any was."""

    WINDOW = 2
    """Steps to either side that a group may be taken from."""

    def __init__(
        self,
        groups: Mapping[int, Sequence[Sequence[tuple[Sequence[Turn], float, int]]]],
        limits: Limits,
        *,
        groups_per_batch: int,
        steps: int,
        seed: int,
    ) -> None:
        """`groups`: by step, what was trained in it: groups of (turns, reward, tokens after the
        last reply). They are spread over `steps` batches."""
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
        return replace(shape, reward=self._lowest)  # what was cut off is no answer
