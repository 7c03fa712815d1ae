"""The contract of external endpoints: models served elsewhere, whose replies come without token
ids."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from agentgym_rl.config import Config, EndpointConfig, EngineKind
from agentgym_rl.core import load_extension

if TYPE_CHECKING:
    from .episode import Player


class EndpointKind(EngineKind):
    """A kind of endpoints, among the kinds of engines: `section` is derived from EndpointConfig.

    Its module is imported with any configuration, so it imports slow modules inside functions.
    """

    def place(self, engine: EndpointConfig) -> str:
        """Return the location of the model, for messages."""
        return engine.base_url

    @abstractmethod
    async def check(self, config: Config, engine: EndpointConfig) -> None:
        """Refuse a configuration that cannot work, before anything starts; send no request.

        Raises:
            ConfigError: the reason.
        """

    @abstractmethod
    def serving(
        self, config: Config, engine: EndpointConfig, *, advice: str = ""
    ) -> AbstractAsyncContextManager[Player]:
        """Open a player of the model `config.model.path`. `advice`: the remedy in the error if the
        endpoint refuses all requests; empty: the default one.

        Raises:
            ConfigError: the endpoint refuses all requests, with the reason; raised at once, in an
                exception group.
        """


def endpoint_kind(engine: EndpointConfig) -> EndpointKind:
    """Return the kind of a model that is served elsewhere."""
    return load_extension("engines", engine.type, of=EndpointKind)
