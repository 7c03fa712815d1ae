"""The search for faster configurations: it starts at the given one, varies one axis at a time, and
keeps the best result for the next axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arl_scale.keys import ConcurrencyKeys

from agentgym_rl.config import Config, unset_keys
from agentgym_rl.core import ConfigError, without

from .episodes import Shapes
from .rates import Rates
from .simulation import Prediction, simulate

WORTH = 0.03
"""The gain in speed that is worth more staleness, memory or change."""
_BEGINNING = 3
"""The batches in which a run starts up, besides twice its bound on staleness."""
_BATCHES = 8
"""The number of batches after the start-up that are measured."""

_ANY_START = {"rollout.start_concurrent": None, "rollout.min_concurrent": None}
"""The reset keys of an adaptive concurrency: values for one bound may not be valid for another."""

Changes = Mapping[str, Any]
ShapesOf = Callable[[Config], Shapes]


@dataclass(frozen=True, slots=True)
class Tried:
    """A configuration that was tried, and its prediction."""

    axis: str
    """The varied axis: split, concurrency, staleness or batch; "configured" for the first one."""
    config: Config
    prediction: Prediction

    @property
    def changes(self) -> dict[str, Any]:
        """Return the values of the configuration keys that the search varies."""
        engine, rollout = self.config.own_engine, self.config.rollout
        return {
            "engine.num_servers": engine.num_servers,
            "trainer.num_ranks": self.config.trainer.num_ranks,
            "rollout.max_staleness": rollout.max_staleness,
            "rollout.groups_per_batch": rollout.groups_per_batch,
            "rollout.max_concurrent": rollout.most_groups,
            "rollout.concurrency": rollout.part(ConcurrencyKeys).concurrency,
        }

    def changed(self, changes: Changes) -> Config:
        """Return the configuration with other values of dotted keys."""
        values = without(self.config.model_dump(), unset_keys(self.config))
        for key, value in changes.items():
            *sections, name = key.split(".")
            inner = values
            for section in sections:
                inner = inner[section]
            inner[name] = value
        return Config.model_validate(values)

    def splits(self, gpus: int, fewest_ranks: int) -> Iterator[Changes]:
        """Yield splits with engines on 1/2, 5/8, 3/4 and 7/8 of the GPUs, the trainer on the
        others, if each copy of the model has `fewest_ranks`."""
        each = self.config.own_engine.gpus_per_server
        seen: set[int] = set()
        for eighths in (4, 5, 6, 7):
            servers = max(1, round(gpus * eighths / 8 / each))
            ranks = gpus - servers * each
            replicas = self.config.trainer.num_replicas
            replicas = replicas if ranks % replicas == 0 else 1
            if ranks // replicas >= fewest_ranks and servers not in seen:
                seen.add(servers)
                yield {
                    "engine.num_servers": servers,
                    "trainer.num_ranks": ranks,
                    "trainer.num_replicas": replicas,
                }
        if not seen:
            raise ConfigError(
                f"--gpus {gpus}: too few for an engine of {each} and a trainer of {fewest_ranks}, "
                "with half of them for engines or more"
            )

    def concurrencies(self) -> Iterator[Changes]:
        """Yield fixed numbers of groups at once, and an adaptive number."""
        rollout = self.config.rollout
        for times in (1, 2, 3, 4):
            at_once = times * rollout.groups_per_batch
            yield _ANY_START | {"rollout.concurrency": "fixed", "rollout.max_concurrent": at_once}
        if not rollout.part(ConcurrencyKeys).adapts:
            yield {"rollout.concurrency": "adaptive", "rollout.max_concurrent": None}

    def batches(self) -> Iterator[Changes]:
        """Yield half and twice the size of a batch."""
        rollout = self.config.rollout
        now, fixed = rollout.groups_per_batch, not rollout.part(ConcurrencyKeys).adapts
        concurrent = rollout.admitted_groups if fixed else rollout.max_concurrent
        for size in (now // 2, now * 2):
            if size >= 1:
                yield _ANY_START | {
                    "rollout.groups_per_batch": size,
                    "rollout.max_concurrent": concurrent,
                }


_STALENESSES: Sequence[Changes] = [
    _ANY_START | {"rollout.max_staleness": bound, "rollout.lookahead": None}
    for bound in (0, 1, 2, 4, 8)
]


def settled(
    config: Config, rates: Rates, shapes_of: ShapesOf, *, axis: str = "configured"
) -> Tried:
    """Predict a run after its start-up: simulate the start-up and some more batches only. Recorded
    episodes are spread over these batches, so they still come from the complete run."""
    skip = min(_BEGINNING + 2 * config.rollout.max_staleness, max(1, config.steps // 2))
    batches = min(config.steps, skip + _BATCHES)
    shapes = shapes_of(config.model_copy(update={"steps": batches}))
    return Tried(axis, config, simulate(config, rates, shapes, skip=skip, batches=batches))


def search(
    first: Tried, rates: Rates, shapes_of: ShapesOf, *, gpus: int | None, fewest_ranks: int = 1
) -> tuple[list[Tried], Tried]:
    """Return all configurations that were tried, and the recommended one. `gpus`: the number of
    GPUs to split between engines and trainer; None: the split stays. `fewest_ranks`: those among
    which the trainer's memory fits."""
    tried, best = [first], first
    for axis, options in _axes(gpus, fewest_ranks):
        found = [best]
        for changes in options(best):
            candidate = best.changed(changes)
            if candidate != best.config:
                found.append(settled(candidate, rates, shapes_of, axis=axis))
        tried += found[1:]
        best = _preferred(axis, found)
    return tried, best


def _axes(
    gpus: int | None, fewest_ranks: int
) -> Iterator[tuple[str, Callable[[Tried], Iterable[Changes]]]]:
    if gpus is not None:
        yield "split", lambda tried: tried.splits(gpus, fewest_ranks)
    yield "concurrency", Tried.concurrencies
    yield "staleness", lambda tried: _STALENESSES
    yield "batch", Tried.batches


def _preferred(axis: str, found: Sequence[Tried]) -> Tried:
    """Return the configuration that costs the least staleness, engine memory or change, among those
    nearly as fast as the fastest one."""
    fastest = max(tried.prediction.episodes_per_s for tried in found)
    good = [t for t in found if t.prediction.episodes_per_s >= (1 - WORTH) * fastest]
    if axis == "staleness":
        return min(good, key=lambda tried: tried.config.rollout.max_staleness)
    if axis == "concurrency":
        return min(good, key=lambda tried: tried.prediction.max_concurrent)
    if axis == "batch" and found[0] in good:
        return found[0]
    return max(good, key=lambda tried: tried.prediction.episodes_per_s)
