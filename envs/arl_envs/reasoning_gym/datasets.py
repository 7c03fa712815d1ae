"""The names of reasoning-gym's datasets, and a check of their options. Runs no dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl import ConfigError
from agentgym_rl.core import install_command, near_of

LARGEST_SEED = 2**32 - 2
"""The largest seed; some datasets take no larger ones, and add an index."""

_NOT_ALONE = frozenset({"composite"})


def names() -> list[str]:
    """Return the names of the datasets.

    Raises:
        ConfigError: reasoning-gym is not installed; the message explains how to install it.
    """
    return sorted(set(_package().factory.DATASETS) - _NOT_ALONE)


def check(dataset: str, config: Mapping[str, Any]) -> None:
    """Refuse a dataset or config that cannot generate questions.

    Raises:
        ConfigError: there is no such dataset, or it does not take this config.
    """
    known = names()
    if dataset in _NOT_ALONE:
        raise ConfigError(f"dataset {dataset!r} mixes others: name the others, each with a weight")
    if dataset not in known:
        near = near_of(dataset, known, most=3, others="there are")
        raise ConfigError(
            f"no dataset of reasoning-gym is called {dataset!r}; {near} (--env reasoning_gym:NAME)"
        )
    if reserved := {"seed", "size"} & config.keys():
        raise ConfigError(f"{dataset}: {', '.join(sorted(reserved))} come from the task")
    _, config_class = _package().factory.DATASETS[dataset]
    try:
        made = config_class(**config)
        if hasattr(made, "validate"):  # as the package itself does
            made.validate()
    except Exception as error:  # assertions, mostly
        allowed = ", ".join(sorted(set(config_class.__dataclass_fields__) - {"seed", "size"}))
        raise ConfigError(
            f"{dataset} does not take {dict(config)}: {type(error).__name__}: {error}; "
            f"it takes {allowed}"
        ) from error


def _package() -> Any:
    try:
        import reasoning_gym  # an optional package; takes two seconds
    except ImportError as error:
        raise ConfigError(
            f"reasoning-gym cannot be imported ({error}): {install_command('reasoning-gym')}"
        ) from error
    return reasoning_gym
