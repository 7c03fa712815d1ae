"""The allocation of engines and trainer to devices, in one line: `ENGINE:d4t2+fsdp:d8`.

The form is AReaL's (github.com/inclusionAI/AReaL, `alloc_mode`), for the backends of this package:

    allocation  component ("+" component)*        on separate devices
    component   part ("|" part)*                  on the same devices
    part        backend ["[" name "]"] ":" dimension+
    backend     a type of engine (engine.type)    engines: d servers of t x p GPUs, experts over e
                trainer.backend, as fsdp          trainer: d x c x t ranks, of which e share experts
    dimension   a letter and a number: d4

Spaces are ignored. An allocation is converted into `engine.type`, `engine.num_servers`,
`engine.tensor_parallel_size`, `engine.pipeline_parallel_size`, `engine.expert_parallel_size`,
`trainer.backend`, `trainer.num_ranks`, `trainer.mesh` and `cluster.colocated`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Never

from agentgym_rl.config import ENGINES
from agentgym_rl.core import ConfigError, load_extensions

from .trainers import TRAINERS, TrainerKind

KEY = "cluster.allocation"
_MEANING = {
    "d": "data parallelism: servers, or ranks",
    "t": "tensor parallelism: GPUs a server, or ranks, split matrices over",
    "p": "pipeline parallelism: groups of such GPUs of a server, with other layers each",
    "c": "context parallelism: ranks that split a row",
    "e": "expert parallelism: those of the GPUs or ranks that split experts; it adds none",
}
_KEYS = {
    "t": "engine.tensor_parallel_size",
    "p": "engine.pipeline_parallel_size",
    "e": "engine.expert_parallel_size",
}
"""The keys of the dimensions of an engine's server."""
_WITH_THE_ACTOR = ("critic", "ref")
"""The models that every trainer rank holds in addition to the policy."""
_WHY_NOT = {
    ("fsdp", "p"): "fsdp has no pipeline: d, c, t and e shard what its stages would hold",
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"[1-9][0-9]*")


def _trainers() -> dict[str, str]:
    """Return the backends that train, with the dimensions of each."""
    kinds = load_extensions(TRAINERS, of=TrainerKind)
    return {name: kind.dimensions for name, kind in kinds.items()}


def _dimensions() -> dict[str, str]:
    """Return the backends with the dimensions of each, those with the most first, trainers last."""
    engines = {name: kind.dimensions for name, kind in ENGINES.members.items() if kind.dimensions}
    order = sorted(engines, key=lambda name: -len(engines[name]))
    return {name: engines[name] for name in order} | _trainers()


def _why_not(backend: str, letter: str) -> str:
    """Return why a backend lacks a dimension; "" if there is no particular reason."""
    if backend in _trainers():
        return _WHY_NOT.get((backend, letter), "")
    return ENGINES[backend].no_dimensions.get(letter, "")


@dataclass(frozen=True)
class Part:
    """A backend with its dimensions; `start` is its position in the text."""

    backend: str
    name: str
    dimensions: dict[str, int]
    start: int

    @property
    def world(self) -> int:
        """Return the number of devices."""
        return math.prod(self.factors.values())

    @property
    def factors(self) -> dict[str, int]:
        """Return the dimensions whose product is the number of devices."""
        return {letter: n for letter, n in self.dimensions.items() if letter != "e"}

    @property
    def trains(self) -> bool:
        return self.backend in _trainers()


def settings(text: str) -> dict[str, Any]:
    """Return the dotted keys of an allocation.

    Raises:
        ConfigError: the text is not an allocation, or cannot be run; a caret shows the place.
    """
    reader = _Reader(text)
    components = _components(reader)
    parts = [part for component in components for part in component]
    engines = [part for part in parts if not part.trains]
    trainers = [part for part in parts if part.trains]
    usual = f"{next(iter(_dimensions()))}:d1"
    for kind, there, form in (("engine", engines, usual), ("trainer", trainers, "fsdp:d1")):
        if not there:
            reader.fail(len(text), f"no {kind}: expected one, such as {form}")
    if len(engines) > 1:
        reader.fail(engines[1].start, "a run has one kind of engine: expected no second one")
    _check_models(trainers, components, reader)
    engine = engines[0]
    shared = next(component for component in components if engine in component)
    if len(shared) > 1:
        _check_shared(engine, trainers[0], shared, reader)
    found: dict[str, Any] = {
        "engine.type": engine.backend,
        "engine.num_servers": engine.dimensions["d"],
        "trainer.backend": trainers[0].backend,
        "trainer.num_ranks": trainers[0].world,
        "trainer.mesh": "".join(
            f"{letter}{n}"
            for letter, n in trainers[0].dimensions.items()
            if letter in "cte" and n > 1
        ),
        "cluster.colocated": len(shared) > 1,
    }
    for letter in ENGINES[engine.backend].dimensions:
        if letter in _KEYS:
            found[_KEYS[letter]] = engine.dimensions.get(letter, 1)
    return found


def _check_shared(engine: Part, actor: Part, shared: list[Part], reader: _Reader) -> None:
    """Check parts on the same devices: the engine sleeps while the policy's ranks train there."""
    late = max(engine.start, actor.start)
    if actor not in shared:
        reader.fail(late, "an engine can share devices only with the policy's ranks")
    if engine.world != actor.world:
        reader.fail(
            late,
            f"parts on the same devices need the same number: {engine.backend} has "
            f"{_product(engine)}, {actor.backend} {_product(actor)}",
        )


def _check_models(trainers: list[Part], components: list[list[Part]], reader: _Reader) -> None:
    """Check the models named in addition to the policy: they must be on the policy's devices."""
    actor, *others = trainers
    if actor.name not in ("", "actor"):
        reader.fail(
            actor.start,
            f"the first trainer must be the policy: expected fsdp[actor], got {actor.name!r}",
        )
    beside = next(component for component in components if actor in component)
    for part in others:
        if part.name not in _WITH_THE_ACTOR:
            reader.fail(
                part.start,
                f"a second trainer has to be named, {' or '.join(_WITH_THE_ACTOR)}; got "
                f"{part.name!r}",
            )
        if part.backend != actor.backend:
            reader.fail(part.start, f"the policy's ranks, which have it, are {actor.backend}")
        if part not in beside:
            reader.fail(
                part.start,
                f"the {part.name} runs on the policy's ranks: expected '|' before it, not '+'",
            )
        if part.world != actor.world:
            reader.fail(
                part.start,
                f"parts on the same devices need the same number: the policy has "
                f"{_product(actor)}, the {part.name} {_product(part)}",
            )


def _product(part: Part) -> str:
    """Return the arithmetic of a part's devices: d4 x t2 = 8."""
    return f"{' x '.join(f'{k}{n}' for k, n in part.factors.items())} = {part.world}"


def _components(reader: _Reader) -> list[list[Part]]:
    names: set[str] = set()
    components = [[_part(reader, names)]]
    while not reader.at_end:
        sign = reader.take_one_of("+", "|")
        if sign == "+":
            components.append([])
        components[-1].append(_part(reader, names))
    return components


def _part(reader: _Reader, names: set[str]) -> Part:
    """Read the next part, and add its name to `names`."""
    start = reader.position
    backends = _dimensions()
    backend = reader.take(_NAME, f"a backend, {', '.join(backends)}")
    if backend not in backends:
        reader.fail(start, f"no backend {backend!r}; allowed: {', '.join(backends)}")
    name = ""
    if reader.follows("["):
        reader.take_one_of("[")
        at = reader.position
        name = reader.take(_NAME, "a name")
        if name in names:
            reader.fail(at, f"the name {name!r} is given twice")
        names.add(name)
        reader.take_one_of("]")
    reader.take_one_of(":")
    dimensions: dict[str, int] = {}
    while not dimensions or reader.follows_word:
        at = reader.position
        letter = reader.take(re.compile("[A-Za-z]"), f"a dimension of {backend}, such as d4")
        if letter not in backends[backend]:
            allowed = ", ".join(f"{it} ({_MEANING[it]})" for it in backends[backend])
            why = _why_not(backend, letter) or f"allowed: {allowed}"
            reader.fail(at, f"no dimension {letter!r} of {backend}; {why}")
        if letter in dimensions:
            reader.fail(at, f"dimension {letter!r} is given twice")
        dimensions[letter] = int(reader.take(_NUMBER, f"how many, as in {letter}4"))
    if "d" not in dimensions:
        reader.fail(start, f"expected their number, such as {backend}:d1")
    return Part(backend, name, dimensions, start)


class _Reader:
    """A reader of the text that ignores spaces."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def position(self) -> int:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._at

    @property
    def at_end(self) -> bool:
        return self.position == len(self._text)

    @property
    def follows_word(self) -> bool:
        return bool(re.match(r"\w", self._text[self.position :]))

    def follows(self, sign: str) -> bool:
        return self._text.startswith(sign, self.position)

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self._text, self.position)
        if found is None:
            self.fail(self._at, f"expected {what}")
        self._at = found.end()
        return found[0]

    def take_one_of(self, *signs: str) -> str:
        for sign in signs:
            if self.follows(sign):
                self._at += len(sign)
                return sign
        self.fail(self.position, f"expected {' or '.join(map(repr, signs))}")

    def fail(self, at: int, why: str) -> Never:
        raise ConfigError(f"{KEY}: {why}\n    {self._text}\n    {' ' * at}^")
