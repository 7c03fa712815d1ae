"""The ids of our environments in Gymnasium's registry."""

from __future__ import annotations

import logging

import gymnasium

from agentgym_rl.gym import registry

log = logging.getLogger(__name__)

_NAMESPACE = "arl"
_ENTRY_POINT = "agentgym_rl.gym.gymnasium.env:SyncGym"


def publish_all() -> None:
    """Register every environment with Gymnasium: those of plugins, those registered so far, and
    from now on each one as it is registered. Environments are imported when they are made."""
    for id in sorted(registry.names("env")):
        publish(id)
    registry.on_new_env(publish)


def publish(id: str) -> None:
    """Register the environment `id` with Gymnasium.

    An id that another package has registered there stays unchanged, with a warning.
    """
    theirs = gymnasium_id(id)
    known = gymnasium.registry.get(theirs)
    if known is not None and known.entry_point != _ENTRY_POINT:
        _warn(id, f"{theirs} is somebody else's, {known.entry_point}")
        return
    gymnasium.registry.pop(theirs, None)  # `register(..., force=True)` means the new one
    try:
        gymnasium.register(theirs, entry_point=_ENTRY_POINT, kwargs={"env": id})
    except gymnasium.error.Error as error:  # Gymnasium does not accept the form of the id
        _warn(id, error)


def gymnasium_id(id: str) -> str:
    """Return Gymnasium's id of the environment `id`: ids without a namespace are in `arl/`."""
    return id if "/" in id else f"{_NAMESPACE}/{id}"


def _warn(id: str, why: object) -> None:
    log.warning("gymnasium.make will not know the environment %s: %s", id, why)
