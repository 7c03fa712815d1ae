"""The kinds of engines that are models served elsewhere, for `arl eval`, and their keys."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from agentgym_rl.config import EndpointConfig, EngineKind
from agentgym_rl.core.extensions import load_extension

if TYPE_CHECKING:
    from .upstream import Upstream


class OpenAIEngineConfig(EndpointConfig):
    """A model behind an external OpenAI-compatible URL, only for `arl eval`. `model.path` is its
    name there."""

    type: Literal["openai"] = "openai"
    base_url: str = Field(default="https://api.openai.com/v1", min_length=1)
    """The URL before /chat/completions."""
    api_key_env: str = "OPENAI_API_KEY"
    """The name of the environment variable with the API key; empty: the server needs none."""


class LiteLLMEngineConfig(EndpointConfig):
    """A model that LiteLLM reaches (extra `litellm`), only for `arl eval`. `model.path` is
    LiteLLM's name of it, PROVIDER/NAME."""

    type: Literal["litellm"] = "litellm"
    base_url: str = ""
    """The `api_base` of LiteLLM; empty: the provider's own."""
    api_key_env: str = ""
    """The name of the environment variable with the API key; empty: the names that LiteLLM knows
    for the provider (ANTHROPIC_API_KEY, ...)."""


class EndpointKind(EngineKind):
    """A kind of endpoint that answers chat completions, in its own name for a model."""

    def check(self, engine: EndpointConfig, model: str) -> None:
        """Refuse a model that cannot be reached, without any request.

        Raises:
            ConfigError: something that it needs is missing; the message says what to do.
        """
        return None

    @abstractmethod
    def upstream(
        self, engine: EndpointConfig, *, model: str, api_key: str, timeout_s: float
    ) -> Upstream:
        """Return the client of a model; its parameters are those of `Upstream`."""


class OpenAIKind(EndpointKind):
    """A model behind an OpenAI-compatible URL."""

    section = OpenAIEngineConfig
    place: ClassVar[int] = 3

    def upstream(
        self, engine: EndpointConfig, *, model: str, api_key: str, timeout_s: float
    ) -> Upstream:
        from .upstream import OpenAIUpstream

        return OpenAIUpstream(engine, model=model, api_key=api_key, timeout_s=timeout_s)


class LiteLLMKind(EndpointKind):
    """A model that LiteLLM reaches."""

    section = LiteLLMEngineConfig
    place: ClassVar[int] = 4

    def check(self, engine: EndpointConfig, model: str) -> None:
        from .litellm_upstream import check_model

        check_model(engine, model)

    def upstream(
        self, engine: EndpointConfig, *, model: str, api_key: str, timeout_s: float
    ) -> Upstream:
        from .litellm_upstream import LiteLLMUpstream

        return LiteLLMUpstream(engine, model=model, api_key=api_key, timeout_s=timeout_s)


def endpoint_kind(engine: EndpointConfig) -> EndpointKind:
    """Return the kind of an endpoint."""
    return load_extension("engines", engine.type, of=EndpointKind)


OPENAI = OpenAIKind()
LITELLM = LiteLLMKind()
