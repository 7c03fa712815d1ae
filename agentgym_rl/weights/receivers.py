"""The contract of kinds of engines that receive policy versions, and the search for them in the
registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from agentgym_rl.config import ENGINES, EngineKind, WeightsConfig
from agentgym_rl.core import load_extension

from .engine_routes import RemoteEngine

if TYPE_CHECKING:
    from .transport import Transport


TRANSPORTS = "transports"
"""The group of entry points of transports that do not depend on the kind of engine: a class, made
with the limit `timeout_s` of an update and the folder `model_dir` of the model."""


class ReceiverKind(EngineKind):
    """A kind of engine that receives policy versions, by default over the routes of
    `RemoteEngine`."""

    polls_staging: ClassVar[bool] = False
    """Whether its servers answer a request for an update before they have staged it, and are
    polled."""

    def recognized(self, engine: RemoteEngine, *, deadline: float) -> RemoteEngine | None:
        """Return the client of a server with routes of this kind; None: it is not such a server, or
        `engine` is the right client.

        Raises:
            WeightsError: it does not answer.
        """
        return None

    def transport(
        self, weights: WeightsConfig, *, num_ranks: int, model_dir: Path | None
    ) -> Transport:
        """Return the transport of `weights.transport`, which is not shm: by default one that a
        package registers for any kind (`TRANSPORTS`). `num_ranks` is the number of trainer ranks
        that publish; `model_dir` is the folder of the run's model.

        Raises:
            ConfigError: it cannot work here.
        """
        make = load_extension(TRANSPORTS, weights.transport)
        return make(timeout_s=weights.update_timeout_s, model_dir=model_dir)


def receiver_kind(type: str) -> ReceiverKind:
    """Return the kind of engines of that type.

    Raises:
        ConfigError: there is no such kind, or it receives no weights.
    """
    return load_extension("engines", type, of=ReceiverKind)


def recognized(engine: RemoteEngine, deadline: float) -> RemoteEngine:
    """Query the kind of a server, which need not be that of `engine.type`; return its client.

    Raises:
        WeightsError: it does not answer.
    """
    for kind in ENGINES.members.values():
        if isinstance(kind, ReceiverKind):
            found = kind.recognized(engine, deadline=deadline)
            if found is not None:
                return found
    return engine
