"""The parts of the objective that are the user's own, tried before they train."""

from __future__ import annotations

from agentgym_rl.config import AlgoConfig
from agentgym_rl.core.errors import ConfigError

from .own_advantage import advantage_needs, check_advantage
from .own_loss import check_loss, loss_needs


def check_own_parts(algo: AlgoConfig) -> frozenset[str]:
    """Try the functions of `algo.loss` and `algo.advantage` on made-up tokens; return what they
    need of a batch.

    Raises:
        ConfigError: one does not keep its contract, or needs models that the configuration does not
            name; or the reference model, which nothing else uses, is named and not needed.
    """
    wanted = {
        f"algo.loss={algo.loss!r}": loss_needs(algo),
        f"algo.advantage={algo.advantage!r}": advantage_needs(algo),
    }
    for who, its in wanted.items():
        if "reference" in its and not algo.kl.reference:
            raise ConfigError(
                f'{who} needs a reference model: set algo.kl.reference to "initial" (the model the '
                "run begins with) or to a model"
            )
        if "teacher" in its and not algo.teacher.models:
            raise ConfigError(f"{who} needs a teacher: name one in algo.teacher.models")
    found = frozenset[str]().union(*wanted.values())
    if algo.kl.reference and not algo.kl.coef and "reference" not in found:
        raise ConfigError(
            f"algo.kl.reference {algo.kl.reference!r} does nothing: algo.kl.coef is 0, and no "
            'function of the objective has @needs("reference") (agentgym_rl.algo.needs); leave '
            "it out"
        )
    check_loss(algo)
    check_advantage(algo)
    return found
