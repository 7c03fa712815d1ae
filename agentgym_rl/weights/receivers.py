"""The contract of engines that get policy versions, and the registry's members that keep it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from agentgym_rl.config import ENGINES, EngineKind, WeightsConfig
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.extensions import load_extension

from .engine_routes import RemoteEngine

if TYPE_CHECKING:
    from .transport import Transport


class ReceiverKind(EngineKind):
    """A kind of engine that gets policy versions, by default over the routes of `RemoteEngine`."""

    polls_staging: ClassVar[bool] = False
    """Whether its servers answer to an update before they have staged it, and are polled."""

    def recognized(self, engine: RemoteEngine, *, deadline: float) -> RemoteEngine | None:
        """Return the client of a server with routes of this kind; None: it is no such server, or
        `engine` is the right client.

        Raises:
            WeightsError: it does not answer.
        """
        return None

    def transport(
        self, weights: WeightsConfig, *, num_ranks: int, model_dir: Path | None
    ) -> Transport:
        """Return the transport of `weights.transport` if it is this kind's own: neither shm nor
        gloo. `num_ranks` of the trainer publish; `model_dir` is the folder of the run's model.

        Raises:
            ConfigError: it cannot work here.
        """
        raise ConfigError(
            f"weights.transport {weights.transport!r} is not of this engine; use shm or gloo"
        )


def receiver_kind(type: str) -> ReceiverKind:
    """Return the kind of engines of that type.

    Raises:
        ConfigError: there is none, or it takes no weights.
    """
    return load_extension("engines", type, of=ReceiverKind)


def recognized(engine: RemoteEngine, deadline: float) -> RemoteEngine:
    """Ask a server for its kind, which need not be that of `engine.type`; return its client.

    Raises:
        WeightsError: it does not answer.
    """
    for kind in ENGINES.members.values():
        if isinstance(kind, ReceiverKind):
            found = kind.recognized(engine, deadline=deadline)
            if found is not None:
                return found
    return engine
