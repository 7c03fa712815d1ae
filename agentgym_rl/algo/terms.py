"""The contract of a term of the objective.

A term is a class that a package registers by an entry point of the group `agentgym_rl.objectives`.
It is on in runs whose configuration has its section, `algo.NAME`. Processes without torch import it
for the keys of its section. The terms of this distribution (arl_objectives) are registered under
the key of `algo` that turns them on; those that `algo.baseline` chooses, in the group
`agentgym_rl.baselines`. A `ModelTerm` (trainer/model_term.py) has models of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ClassVar

from agentgym_rl.config import BASELINES, AlgoConfig, NoKeys, Section
from agentgym_rl.core import ConfigError, entry_points_of, is_ours, load_extension, not_installed

if TYPE_CHECKING:
    from torch import Tensor

    from .aggregation import Tally
    from .inputs import LossTokens, TokenBatch

GROUP = "objectives"


class Term:
    """A term of the objective. A subclass has a `section` of keys, and any of the methods, which
    are called in this order. Methods that get a batch are collective: every rank calls them."""

    section: ClassVar[type[Section]] = NoKeys
    """The keys of the term, below `algo.NAME`."""
    needs: Collection[str] = ()
    """The things that the term needs; an instance may set its own."""
    provides: ClassVar[str] = ""
    """The need of other parts that the term meets, if it is on; "": none."""
    lacking: ClassVar[str] = ""
    """The thing that it provides, and how to get it, for errors of parts that need it."""
    unused: str = ""
    """The error if no part needs what it provides; "": it has another use."""
    has_models: ClassVar[bool] = False
    """Whether it is a `ModelTerm`."""
    order: ClassVar[int] = 60
    """Its place among the terms; those with the same are in the order of their names."""
    replaces_advantages: ClassVar[bool] = False
    """Whether `base` takes the place of advantages relative to a group or a batch."""
    pays_turns: ClassVar[bool] = True
    """Whether rewards of turns are added to the advantages of episodes."""

    def __init__(self, keys: Section) -> None:
        """Store the values of the term's keys as `self.keys`."""
        self.keys = keys

    def learns(self, step: int) -> bool:
        """Return whether the policy is trained on batch `step`."""
        return True

    def shaped(self, batch: TokenBatch, rewards: Tensor) -> Tensor:
        """Return rewards of the episodes, [E], in place of these: they become `batch.rewards`."""
        return rewards

    def compared(
        self, batch: TokenBatch, advantages_of: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """Return advantages of the episodes, [E], computed with `advantages_of`, which maps
        rewards, [E], to advantages relative to the group or the batch; None: those of
        `batch.rewards`."""
        return None

    def of_episodes(self, batch: TokenBatch, advantages: Tensor) -> Tensor:
        """Return advantages of the episodes, [E], in place of these, which are relative to a group
        or a batch: all episodes of the batch, the same on every rank."""
        return advantages

    def rewards(self, batch: TokenBatch) -> Tensor | None:
        """Return a reward of each token, [N], for a term that sums rewards itself (a critic)."""
        return None

    def returns(self, batch: TokenBatch) -> Tensor | None:
        """Return the rewards of tokens, summed over each token and the later ones of its row, [N],
        to be added to advantages: `algo.whiten` over tokens applies to it, and with a critic
        `rewards` takes its place."""
        return None

    def base(self, batch: TokenBatch) -> Tensor:
        """Return the advantages of tokens, [N], in place of others (`replaces_advantages`)."""
        raise NotImplementedError

    def advantages(self, batch: TokenBatch) -> Tensor | None:
        """Return a number to add to the advantage of each token, [N], without whitening."""
        return None

    def begin(self, batch: TokenBatch) -> None:
        """Prepare for the updates of a batch, whose advantages are complete."""

    def weights(self, batch: TokenBatch) -> Tensor | None:
        """Return factors of the behavior weights of the tokens, [N], after `begin`; 0 drops a
        token. They need the proximal log-probs only if the term does."""
        return None

    def uses(self, batch: TokenBatch) -> Tensor | None:
        """Return a number for each token, [N], other than 0 where the term has a gradient: its row
        is computed even if the advantages are 0. (`every_row` is for terms that use all.)"""
        return None

    def candidates(self, batch: TokenBatch, index: Tensor) -> Tensor | None:
        """Return the ids of other tokens, [n, K], whose log-probs the term needs in the places of
        the tokens at `index`: they become `tokens.candidates`. At most one term may have any."""
        return None

    def objective(self, tokens: LossTokens) -> Tensor | None:
        """Return a number to add to the objective of each token, [n]: larger is better. The
        behavior weight and the aggregation weight of the token apply to it."""
        return None

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        """Return a number to add to the loss of these tokens, a scalar: smaller is better. A sum
        over tokens, times `tokens.weights`, depends neither on packing nor on ranks."""
        return None

    def measure(self, batch: TokenBatch, used: Tensor, proximal: Tensor, tally: Tally) -> None:
        """Add metrics of the tokens at the indices `used`, with their proximal log-probs."""

    def end(self, batch: TokenBatch) -> None:
        """Finish a batch, after its updates."""


def all_terms(algo: AlgoConfig) -> list[Term]:
    """Return the terms that are on, in the order in which they are added.

    Raises:
        ConfigError: see `our_terms` and `registered_terms`.
    """
    found = [*our_terms(algo), *registered_terms(algo).values()]
    return sorted(found, key=lambda term: term.order)


def our_terms(algo: AlgoConfig) -> list[Term]:
    """Return the terms of this distribution that are on.

    Raises:
        ConfigError: the term of a key that is set is not installed.
    """
    found: list[Term] = []
    for name, keys in algo.terms.items():
        group = BASELINES if name == algo.baseline else GROUP
        points = entry_points_of(group)
        if name not in points or not is_ours(points[name]):
            raise not_installed(group, f"algo.{name}", "has its term")
        found.append(_kind(name, group)(keys))
    return sorted(found, key=lambda term: term.order)


def provider(need: str) -> type[Term] | None:
    """Return our term that provides what a part of the objective needs; None: there is none."""
    ours = (name for name, point in entry_points_of(GROUP).items() if is_ours(point))
    return next((kind for kind in map(_kind, ours) if kind.provides == need), None)


def registered_terms(algo: AlgoConfig) -> dict[str, Term]:
    """Return the terms of other packages that are on, by name and in that order. A term with a loss
    needs every row, unless its `uses` names the tokens: otherwise rows whose advantages are all 0
    would be left out, and the term's loss with them.

    Raises:
        ConfigError: one is not registered, is not a `Term`, or cannot be made.
    """
    found: dict[str, Term] = {}
    for name, keys in sorted(algo.term_sections.items()):
        kind = _kind(name)
        try:
            term = kind(keys)
        except Exception as error:  # foreign code runs: it can raise anything
            raise ConfigError(f"algo.{name} cannot be made: {error!r}") from error
        has_loss = kind.loss is not Term.loss or kind.objective is not Term.objective
        if has_loss and kind.uses is Term.uses:
            term.needs = (*term.needs, "every_row")
        found[name] = term
    return found


def _kind(name: str, group: str = GROUP) -> type[Term]:
    """Return the class that is registered under a name.

    Raises:
        ConfigError: it is not registered, or is not a `Term`.
    """
    kind: object = load_extension(group, name)
    if not (isinstance(kind, type) and issubclass(kind, Term)):
        raise ConfigError(
            f"{group} has {name!r}, which is {kind!r:.80}; expected a subclass of "
            "agentgym_rl.algo.terms.Term"
        )
    return kind
