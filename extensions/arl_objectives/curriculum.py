"""The curriculum of a run: it skips tasks whose measured rewards teach little.

A curriculum does not search for tasks. The cursor offers the tasks in their order, and the
curriculum takes or skips each one; a finite source offers its tasks again in its next epoch. The
decision depends on the seed, on the index, and on rewards of groups that began under earlier policy
versions. So it does not depend on which of the present groups ends first: a synchronous run that is
killed and resumed takes the same tasks. A task that is taken is logged before it is played.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from agentgym_rl.config import RolloutConfig
from agentgym_rl.core import ConfigError, Group, Task, derived_number, explain, is_mapping
from agentgym_rl.rollout import Draws, DrawsKind
from agentgym_rl.runtime import import_object
from agentgym_rl.storage import EpisodeLog, Recovered
from agentgym_rl.storage.recovery import NOTHING, Result

from .keys.curriculum import CurriculumKeys

log = logging.getLogger(__name__)

_SUSPICIOUS = 64
"""The number of known tasks, all of them passed over, at which the scale is suspicious."""


class Curriculum(ABC):
    """A strategy. Both methods are pure functions of their arguments and the options."""

    @abstractmethod
    def key(self, task: Task, /) -> str:
        """Return the name under which the rewards of this task are remembered."""

    @abstractmethod
    def chance(self, key: str, rewards: Mapping[str, Sequence[float]], /) -> float:
        """Return the probability of taking a task of `key`. `rewards` has the mean reward of each
        group that is known, by key, in the order of the tasks; a new key has none."""


class PassRate(Curriculum):
    """A strategy that prefers tasks whose pass rate is near `aim`: there, episodes of a

    group differ most. `by` is the unit of a pass rate: "task", "level" (the task's data name it) or
    "env" (a member of a mix). A rate is measured over the last `window` groups of its unit. Solved
    and hopeless ones keep the chance `floor`, so they come back when that has changed. Rewards of
    `low` and `high` count as 0 and 1: by default 0 and 1 themselves, as long as no group has a
    reward beyond; see `scale`.
    """

    def __init__(
        self,
        by: str,
        *,
        aim: float = 0.5,
        floor: float = 0.05,
        window: int = 4,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        ordered = low is None or high is None or low < high
        if not (0 < aim < 1 and 0 <= floor <= 1 and window >= 1 and ordered):
            raise ValueError("allowed: 0 < aim < 1, 0 <= floor <= 1, window >= 1, low < high")
        self._by, self._aim, self._floor, self._window = by, aim, floor, window
        self._low, self._high = low, high
        self._at_floor = 0
        """The number of probabilities so far if all of them were `floor`; -1: one was not."""
        self._warned: set[str] = set()

    def key(self, task: Task, /) -> str:
        return task.id if self._by == "task" else named(task, self._by)

    def chance(self, key: str, rewards: Mapping[str, Sequence[float]], /) -> float:
        known = rewards.get(key, ())[-self._window :]
        if not known:
            return 1.0
        low, high = self.scale(rewards)
        if low >= high:  # all rewards are the same: pass and fail cannot be distinguished
            return 1.0
        rate = (sum(known) / len(known) - low) / (high - low)
        distance = (min(max(rate, 0.0), 1.0) - self._aim) / max(self._aim, 1 - self._aim)
        chance = max(self._floor, 1 - distance**2)
        self._watch(chance, rewards)
        return chance

    def scale(self, rewards: Mapping[str, Sequence[float]]) -> tuple[float, float]:
        """Return the rewards that count as failed and as passed.

        Without `low` and `high` these are 0 and 1. If a group has a reward beyond, they are those
        of the lowest and the highest group: but 0 if the lowest is between 0 and 1, and 1 if the
        highest is above 0 and not above 1.
        """
        lowest, highest = _range(rewards)
        low, high = 0.0, 1.0
        if lowest < 0 or highest > 1:
            low = 0.0 if 0 <= lowest < 1 else lowest
            high = 1.0 if 0 < highest <= 1 else highest
        return low if self._low is None else self._low, high if self._high is None else self._high

    def _watch(self, chance: float, rewards: Mapping[str, Sequence[float]]) -> None:
        """Warn once of rewards with another scale: skipped tasks would go unnoticed."""
        lowest, highest = _range(rewards)
        self._at_floor = self._at_floor + 1 if chance <= self._floor and self._at_floor >= 0 else -1
        if self._at_floor == _SUSPICIOUS:
            self._warn(
                "floor",
                f"passes over each of the first {_SUSPICIOUS} known tasks: all count as solved or "
                f"hopeless. Groups have rewards from {lowest:g} to {highest:g}, and {{}} and {{}} "
                "count as failed and passed",
                rewards,
            )
        if (lowest < 0 or highest > 1) and None in (self._low, self._high):
            self._warn(
                "scale",
                f"sees rewards from {lowest:g} to {highest:g}, beyond 0 to 1: it measures by what "
                "it has seen, for now {} as failed and {} as passed",
                rewards,
            )

    def _warn(self, kind: str, what: str, rewards: Mapping[str, Sequence[float]]) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            low, high = self.scale(rewards)
            log.warning(
                "rollout.curriculum=%s %s. Set what counts, as in "
                "--rollout.curriculum_options='{low = %g, high = %g}'. This warning is shown once",
                *(self._by, what.format(f"{low:g}", f"{high:g}"), low, high),
            )


class KnownRewards(Mapping[str, Sequence[float]]):
    """The mean rewards of groups by key, each at its place by task index, and their range. A
    strategy cannot change them."""

    def __init__(self) -> None:
        self.lowest, self.highest = math.inf, -math.inf
        self._places: dict[str, list[int]] = {}
        self._rewards: dict[str, tuple[float, ...]] = {}

    def __getitem__(self, key: str) -> Sequence[float]:
        return self._rewards[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rewards)

    def __len__(self) -> int:
        return len(self._rewards)

    def add(self, result: Result) -> None:
        """Add the result of a group."""
        places = self._places.setdefault(result.key, [])
        at = bisect(places, result.index)
        places.insert(at, result.index)
        known = self._rewards.get(result.key, ())
        self._rewards[result.key] = (*known[:at], result.reward, *known[at:])
        self.lowest = min(self.lowest, result.reward)
        self.highest = max(self.highest, result.reward)


def _range(rewards: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Return the lowest and the highest reward of a group."""
    if isinstance(rewards, KnownRewards):
        return rewards.lowest, rewards.highest
    every = [reward for known in rewards.values() for reward in known]
    return min(every, default=math.inf), max(every, default=-math.inf)


def named(task: Task, field: str) -> str:
    """Return the `field` of a task's data, or of the data of the task inside it (of a mix).

    Raises:
        ConfigError: there is no such field.
    """
    data: Any = task.data
    while is_mapping(data):
        if field in data:
            return str(data[field])
        data = data.get("data")
    raise ConfigError(
        f"rollout.curriculum={field!r}: the data of task {task.id} have no {field!r}, but "
        f"{', '.join(map(str, task.data)) or 'nothing'}; use 'task', or a strategy module:Class"
    )


def strategy(config: RolloutConfig) -> Curriculum:
    """Return the strategy of `rollout.curriculum`.

    Raises:
        ConfigError: the class cannot be imported, or refuses its options.
    """
    keys = config.part(CurriculumKeys)
    name, options = keys.curriculum, keys.curriculum_options
    try:
        made = import_object(name)(**options) if ":" in name else PassRate(name, **options)
    except ConfigError:
        raise
    except Exception as error:  # the class may be a user's own
        raise ConfigError(
            f"rollout.curriculum={name!r} refuses rollout.curriculum_options={options}: "
            f"{str(error) or repr(error)}"
        ) from error
    if not isinstance(made, Curriculum):
        raise ConfigError(
            f"rollout.curriculum={name!r} made a {type(made).__name__}, expected a subclass of "
            "arl_objectives.curriculum:Curriculum"
        )
    return made


class Drawn(Draws):
    """The decisions of a run's curriculum, and the results that they depend on."""

    def __init__(
        self,
        strategy: Curriculum,
        episodes: EpisodeLog,
        *,
        seed: int,
        name: str = "",
        recovered: Recovered = NOTHING,
    ) -> None:
        """Continue with the decisions and results in the log of a resumed run. `name` is the value
        of `rollout.curriculum`, for errors."""
        self._strategy, self._name = strategy, name
        self._episodes = episodes
        self._seed = seed
        self._keys = dict(recovered.drawn)
        """The keys of the tasks taken, by index."""
        self._fresh: list[Result] = list(recovered.results)
        """The results that only decisions under later versions may use."""
        self._rewards = KnownRewards()
        """The results that decisions may use now."""

    @property
    def taken(self) -> Sequence[int]:
        return sorted(self._keys)

    def takes(self, index: int, task: Task, *, version: int) -> bool:
        self._see(version)
        drawn = derived_number(f"{self._seed}/curriculum/{index}") / 2**48
        key = self._key(task)
        chance = self._result_of("chance", lambda: self._strategy.chance(key, self._rewards))
        if not isinstance(chance, Real) or not 0 <= float(chance) <= 1:
            raise self._wrong(f"chance({key!r}, …) returned {chance!r}, not a number from 0 to 1")
        return drawn < float(chance)

    def _key(self, task: Task) -> str:
        key = self._result_of("key", lambda: self._strategy.key(task))
        if not isinstance(key, str):
            raise self._wrong(f"key of task {task.id} returned {key!r}, not a text")
        return key

    def _result_of(self, name: str, call: Callable[[], object]) -> object:
        """Return what a method of the strategy returns.

        Raises:
            ConfigError: it raised.
        """
        try:
            return call()
        except ConfigError:
            raise
        except Exception as error:
            raise self._wrong(f"{name} raised {explain(error)}") from error

    def _wrong(self, what: str) -> ConfigError:
        kind = type(self._strategy)
        return ConfigError(f"rollout.curriculum={kind.__module__}:{kind.__qualname__}: {what}")

    async def record(self, index: int, task: Task) -> None:
        if index not in self._keys:
            key = self._key(task)
            await self._episodes.add_drawn(index, key)
            self._keys[index] = key

    def saw(self, group: Group) -> None:
        if group.index in self._keys and (result := Result.of(group, self._keys[group.index])):
            self._fresh.append(result)

    def _see(self, version: int) -> None:
        """Count the results of groups that began before `version`, each at its place: their order
        does not depend on when they ended."""
        for result in (seen := [r for r in self._fresh if r.version < version]):
            self._rewards.add(result)
        if seen:
            self._fresh = [result for result in self._fresh if result.version >= version]

    def exhausted(self, passed: int) -> ConfigError:
        return ConfigError(
            f"rollout.curriculum={self._name!r} passed over {passed} tasks in a row "
            "(rollout.max_rejected): every task is solved or hopeless; raise floor in "
            "rollout.curriculum_options, or end the run"
        )


class _Kind(DrawsKind):
    def takes(self, config: RolloutConfig) -> bool:
        return bool(config.part(CurriculumKeys).curriculum)

    def key(self, config: RolloutConfig) -> str:
        return f"rollout.curriculum={config.part(CurriculumKeys).curriculum!r}"

    def check(self, config: RolloutConfig) -> None:
        strategy(config)

    def draws(
        self, config: RolloutConfig, episodes: EpisodeLog, *, seed: int, recovered: Recovered
    ) -> Draws:
        name = config.part(CurriculumKeys).curriculum
        return Drawn(strategy(config), episodes, seed=seed, name=name, recovered=recovered)


KIND = _Kind()
