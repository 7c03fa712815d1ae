"""The keys that installed packages add to the sections of the configuration.

An entry point of the group `agentgym_rl.keys` has the name of a key, such as `rollout.workers`, and
names the class that declares it: a `Section` of some keys that belong together, with their rules.
Each key has an entry point of its own, so that a key whose package was left out of the installation
is known, and refused with the name of that package. A key of the configuration itself may hold a
section: `init`.

The classes are bases of the section that they are added to, so `config.of(WorkerKeys).workers` is
`rollout.workers`. They are found when the module of that section is imported: their modules import
neither the configuration nor torch before they use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from .errors import ConfigError
from .extensions import entry_points_of, extension_names, is_ours, load_extension, not_installed
from .section import KEYS, Section, Sections

if TYPE_CHECKING:
    from .model_folder import Shapes

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherModel:
    """A model that trainer ranks use beside the policy."""

    model: str
    """A folder or a Hugging Face id; "": the model that the run begins with."""
    role: str
    """The noun for it, and the phase of a batch in which it computes log-probs (`time/ROLE`)."""
    title: str
    """The description of it in errors."""
    moved_by: str = ""
    """The key by which it follows the policy, with its value; "": it is frozen."""


class ObjectiveKeys(Section):
    """Keys of the section `algo`. A package's class derives from this one; its methods return what
    those of `super()` do, and what its own keys add."""

    @property
    def terms(self) -> dict[str, Section]:
        """Return the keys of each term that is on, by the name that the term is registered by."""
        return {}

    @property
    def uses_every_row(self) -> bool:
        """Return whether the loss has a term for tokens whose advantage is 0."""
        return False

    @property
    def needs_batch(self) -> bool:
        """Return whether the loss of a token depends on all proximal log-probs of the batch."""
        return False

    @property
    def reward_factor(self) -> float:
        """Return the factor of advantages from rewards; 0: rewards do not count."""
        return 1.0

    @property
    def other_models(self) -> list[OtherModel]:
        """Return the models that trainer ranks use beside the policy, without those that they
        train."""
        return []

    @property
    def reward_parts(self) -> list[str]:
        """Return the names of the metrics of episodes that advantages use in place of rewards."""
        return []

    def not_simulated(self) -> Iterator[tuple[str, str]]:
        """Yield the keys without effect on a prediction, and what it assumes instead."""
        return iter(())

    def simulated(self) -> Self:
        """Return the section without the keys that a simulated batch has no numbers for."""
        return self

    def of_task(self, env_id: str, data: Mapping[str, Any]) -> dict[str, list[float]]:
        """Return the numbers that terms need of each episode, by the term's name, for a task of
        this environment with these data."""
        return {}

    def trains_policy(self, step: int) -> bool:
        """Return whether batch `step` trains the policy."""
        return True

    def watches(self) -> list[TaskWatch]:
        """Return new watches of the tasks that are trained."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKind:
    """A loss that `algo.loss` names, by an entry point of the group `agentgym_rl.losses`."""

    function: str
    """The function, `module:function`, which ranks import: it gets the tokens, the logs of their
    ratios and `algo`, and returns a `TokenObjective` (algo/inputs.py)."""
    keys: Collection[str] = ()
    """The keys of `algo` that some losses alone have, and this one too."""
    ratio: str = "token"
    """The value that `algo.ratio` has for it, if it is not set."""
    takes_ratio: bool = False
    """Whether it takes other values of `algo.ratio`."""
    order: int = 100
    """Its place in lists; those with the same are in the order of their names."""


_CLIPS = ("clip_low", "clip_high", "dual_clip")
PPO = LossKind(
    function="agentgym_rl.algo.losses:ppo",
    keys=(*_CLIPS, "behavior_clip"),
    takes_ratio=True,
    order=0,
)
GSPO = LossKind(
    function="agentgym_rl.algo.losses:ppo", keys=_CLIPS, ratio="row", takes_ratio=True, order=10
)
REINFORCE = LossKind(function="agentgym_rl.algo.losses:reinforce", order=60)


class TaskWatch(Protocol):
    """A watch of the tasks of a run."""

    def batch(self, tasks: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Look at the tasks of the next batch, each an environment and its data."""
        ...


class PlayKeys(Section):
    """Keys of the section `rollout`. A package's class derives from this one; its methods return
    what those of `super()` do, and what its own keys add."""

    @property
    def admitted_groups(self) -> int:
        """Return the number of concurrent groups at the start of a run."""
        raise NotImplementedError

    @property
    def most_groups(self) -> int:
        """Return the maximum number of concurrent groups."""
        raise NotImplementedError

    @property
    def other_engines(self) -> list[str]:
        """Return the models beside the policy that the run serves by engines of their own."""
        return []

    @property
    def player_processes(self) -> tuple[int, int]:
        """Return the number of processes that play beside that of the run, and the CPUs of each."""
        return 0, 0

    def refused_for_clients(self) -> Iterator[str]:
        """Yield what keeps other programs from playing the episodes (`arl serve`)."""
        return iter(())

    def not_simulated(self) -> Iterator[tuple[str, str]]:
        """Yield the keys without effect on a prediction, and what it assumes instead."""
        return iter(())


class PlaceKeys(Section):
    """Keys of the section `cluster`. A package's class derives from this one; its methods return
    what those of `super()` do, and what its own keys add."""

    @property
    def shares_devices(self) -> bool:
        """Return whether engines and trainer ranks use the same devices in turns."""
        return False

    def notes(self) -> Iterator[str]:
        """Yield lines on the places of processes for `arl train --dry-run`."""
        return iter(())


class RankKeys(Section):
    """Keys of the section `trainer`. A package's class derives from this one; its methods return
    what those of `super()` do, and what its own keys add."""

    @property
    def ranks_per_row(self) -> int:
        """Return the number of ranks that compute the same rows."""
        return 1

    def computed_share(self, name: str) -> float:
        """Return the share of a parameter, by its name, that a rank computes with."""
        return 1.0

    @property
    def backend_loader(self) -> str:
        """Return the function, `module:function`, with which a rank loads its `TrainerBackend`: of
        the configuration, a `World`, and the folder of the model."""
        return "agentgym_rl.trainer.step:make_stepper"

    @property
    def model_parallel(self) -> str:
        """Return the function, `module:function`, that makes the `ModelParallel` of a model from
        these keys and the `World` of a rank; "": there is none."""
        return ""


class EvalKeys(Section):
    """Keys of the section `eval`. A package's class derives from this one; its methods return what
    those of `super()` do, and what its own keys add."""

    def cost_usd(self, *, prompt: int, cached: int, completion: int) -> float | None:
        """Return the cost of numbers of tokens; None: no prices are configured. `cached` are those
        of the `prompt` tokens that came from a cache."""
        return None


class ServiceKeys(Section):
    """Keys of the configuration itself. A package's class derives from this one; its methods return
    what those of `super()` do, and what its own keys add."""

    @property
    def verifier_options(self) -> Mapping[str, Any]:
        """Return the options of the pool that verifiers run in (`gym/verifier.py`)."""
        return {}


ADAPTERS = "adapters"
"""The group of entry points of the classes of adapters."""


class AdapterKeys(Section):
    """A section of keys of an adapter: a run trains two small matrices for each of some layers in
    place of all weights (trainer/adapter.py). A package's class derives from this one; its adapters
    are registered in the group `agentgym_rl.adapters`, under the name of the section."""

    place: ClassVar[str]
    """The name of the section."""

    @property
    def adapter_rank(self) -> int:
        """Return the rank of the matrices; 0: there is no adapter, all weights train."""
        return 0

    @property
    def title(self) -> str:
        """Return the keys that turn the adapter on, for errors."""
        return self.place

    @property
    def is_served(self) -> bool:
        """Return whether engines compute the adapter in addition to their base, instead of merging
        each version into their weights."""
        return False

    def served_layers(self, model_dir: Path) -> list[str]:
        """Return the names of the layers with an adapter that engines compute.

        Raises:
            ConfigError: the model in the folder has none.
        """
        raise NotImplementedError

    def matrix_shapes(self, shapes: Shapes, *, vocabulary: int) -> Shapes:
        """Return the shapes of all matrices, by any names, for a model with tensors of these
        shapes."""
        raise NotImplementedError

    def conflicts(self, config: Sections) -> Iterator[str]:
        first = adapter_of(config)
        if not self.adapter_rank or first is None:
            return
        if first is not self:
            yield f"{first.title} with {self.title}: a run trains one adapter; leave one out"
        if self.place not in extension_names(ADAPTERS):
            yield str(not_installed(ADAPTERS, self.title, "has its adapters"))
        for other in config.of(ObjectiveKeys).other_models:
            if other.moved_by:
                yield (
                    f"{other.moved_by} with {self.title}: the {other.role} has no adapter, so it "
                    "cannot move to the policy; leave one of them out"
                )


def adapter_of(config: Sections, *, served: bool = False) -> AdapterKeys | None:
    """Return the keys of the adapter that a run trains; None: all weights train, or (`served`) no
    engine computes an adapter."""
    found = (it for it in config.sections if isinstance(it, AdapterKeys) and it.adapter_rank)
    keys = next(found, None)
    return keys if keys is not None and (keys.is_served or not served) else None


def with_added_keys(place: str = "") -> Callable[[type[S]], type[S]]:
    """Return a decorator that adds to a section the keys that packages register for it; `place` is
    its dotted name, "" for the configuration itself."""

    def completed(kind: type[S]) -> type[S]:
        prefix = f"{place}." if place else ""
        parts = list(_parts(kind, prefix))
        space: dict[str, Any] = {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "added_to": prefix,
            "added": tuple(parts),
            "needs": tuple(rule for each in (kind, *parts) for rule in each.needs),
            "absent": {name: why for each in (kind, *parts) for name, why in each.absent.items()},
            "stands_for": {
                key: of for each in (kind, *parts) for key, of in each.stands_for.items()
            },
            "conflicts": _conflicts_of(kind, parts),
        }
        made = type(kind)(kind.__name__, (*parts, kind), space, use_attribute_docstrings=False)
        _sort(made, kind, parts)
        return made

    return completed


def _parts(kind: type[Section], prefix: str) -> Iterator[type[Section]]:
    """Yield the registered classes of keys of a section, each once; one that cannot be added is
    left out, with a warning, as it is no obstacle to others."""
    points = entry_points_of(KEYS)
    names = [name for name in extension_names(KEYS) if _is_in(name, prefix)]
    names.sort(key=lambda name: name not in points or not is_ours(points[name]))  # ours first
    taken = dict.fromkeys(kind.model_fields, kind) | dict.fromkeys(_checks(kind), kind)
    found: list[object] = []
    for name in names:
        try:
            part: object = load_extension(KEYS, name)
            if part in found:
                continue
            if not (isinstance(part, type) and issubclass(part, Section)):
                raise ConfigError(
                    f"{KEYS}: {name!r} is {part!r:.80}; expected a subclass of "
                    "agentgym_rl.config.Section"
                )
            its = {*part.model_fields, *_checks(part)}
            if clash := sorted(its & taken.keys()):
                raise ConfigError(
                    f"{KEYS}: {name!r} of {part.__module__} has {', '.join(clash)}, as "
                    f"{taken[clash[0]].__module__} does; give it other names"
                )
        except ConfigError as error:
            log.warning("left out: %s", error)
            continue
        taken |= dict.fromkeys(its, part)
        found.append(part)
        yield part


def _is_in(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and "." not in name.removeprefix(prefix)


def _checks(kind: type[Section]) -> set[str]:
    """Return the names of the validators of a class, which pydantic runs once each, without those
    of every section."""

    def names(of: type[Section]) -> set[str]:
        found = of.__pydantic_decorators__
        return {*found.model_validators, *found.field_validators}

    return names(kind) - names(Section)


def _conflicts_of(
    kind: type[Section], parts: Sequence[type[Section]]
) -> Callable[[Section, Sections], Iterator[str]]:
    def conflicts(self: Section, config: Sections) -> Iterator[str]:
        for each in (kind, *parts):
            yield from each.conflicts(self, config)

    return conflicts


def _sort(made: type[Section], kind: type[Section], parts: Sequence[type[Section]]) -> None:
    """Put the keys of the parts in their places between the others, as help and files show them."""
    order, rest = [*kind.model_fields], [*parts]
    while here := [part for part in rest if part.after in order]:  # some stand behind others' keys
        for part in reversed(here):
            at = order.index(part.after) + 1
            order[at:at] = part.model_fields
        rest = [part for part in rest if part not in here]
    order += [key for part in parts for key in part.model_fields if key not in order]
    fields = {name: made.model_fields[name] for name in order}
    made.model_fields.clear()
    made.model_fields.update(fields)
    made.model_rebuild(force=True)
