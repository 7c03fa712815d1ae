"""The contract of engines that are models served elsewhere, which reply without their tokens."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from agentgym_rl.config import Config, EndpointConfig, EngineKind
from agentgym_rl.core.extensions import load_extension

if TYPE_CHECKING:
    from .episode import Player


class EndpointKind(EngineKind):
    """A kind of endpoints, among the kinds of engines: `section` is derived from EndpointConfig.

    Its module is imported with any configuration, so it imports what is slow when it is used.
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
        """Open a player of the model `config.model.path`. `advice`: what a user can do if the
        endpoint refuses all requests; empty: the usual.

        Raises:
            ConfigError: the endpoint refuses all requests, with the reason; raised at once, in an
                exception group.
        """


def endpoint_kind(engine: EndpointConfig) -> EndpointKind:
    """Return the kind of a model that is served elsewhere."""
    return load_extension("engines", engine.type, of=EndpointKind)
