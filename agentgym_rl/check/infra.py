"""Infrastructure that fails under many at once is raised as what it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from agentgym_rl.errors import InfraError


@contextlib.contextmanager
def infra_alone() -> Iterator[None]:
    """Out of a group that holds an InfraError, that one alone is raised; else all as it is.

    Raises:
        InfraError: the first in the group.
    """
    try:
        yield
    except ExceptionGroup as group:
        found = _first(group)
        if found is None:
            raise
        raise found from group


def _first(group: ExceptionGroup[Exception]) -> InfraError | None:
    for error in group.exceptions:
        found = _first(error) if isinstance(error, ExceptionGroup) else error
        if isinstance(found, InfraError):
            return found
    return None
