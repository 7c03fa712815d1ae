"""The models that are served elsewhere, with the API of OpenAI or through LiteLLM: the check of
their configuration, and their player behind the relay (relay.py)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from agentgym_rl.config import Config, EndpointConfig, GatewayConfig, ModelConfig
from agentgym_rl.core import ConfigError
from agentgym_rl.rollout import EndpointKind

if TYPE_CHECKING:
    from agentgym_rl.rollout import Player
    from arl_endpoints.upstream import Upstream


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


_OF_OUR_ENGINES = (
    *("tool_parser", "reasoning_parser", "thinking_history", "edited_calls"),
    *("train_side_lineages", "canary_fraction", "chat_template", "hidden_tools", "enable_thinking"),
    "date",
)
"""The keys of `gateway` that only apply to conversations rendered and recorded by our gateway."""


class OpenAIEndpoint(EndpointKind):
    """The endpoints at `engine.base_url`."""

    section = OpenAIEngineConfig
    order: ClassVar[int] = 3

    async def check(self, config: Config, engine: EndpointConfig) -> None:
        """Refuse a configuration that cannot work; see `EndpointKind.check`.

        Raises:
            ConfigError: no model is named, the API key is missing, a key does not apply here, or
                `check_parts` fails.
        """
        from agentgym_rl.rollout import check_parts

        place = self.place(engine)
        if config.model.path == ModelConfig().path:
            raise ConfigError(
                f"--engine={engine.type} asks {place} for a model by name: pass --model NAME "
                f"({config.model.path!r} is the model of this package)"
            )
        if config.model.revision is not None:
            raise ConfigError(
                f"model.revision {config.model.revision!r} has no effect with {place}: it is "
                "for models that are loaded here; leave it out, or name the revision in --model"
            )
        for name in _OF_OUR_ENGINES:
            value = getattr(config.gateway, name)
            if value != GatewayConfig.model_fields[name].default:
                raise ConfigError(
                    f"gateway.{name} {value!r} has no effect with --engine={engine.type}: the "
                    "endpoint itself renders conversations and reads replies; leave it out"
                )
        if config.rollout.max_input_tokens is not None:
            raise ConfigError(
                f"rollout.max_input_tokens {config.rollout.max_input_tokens} cannot be applied "
                f"with --engine={engine.type}: the tokenizer of the model is unknown here; leave "
                "it out"
            )
        self._api_key(engine)
        self.check_model(engine, config.model.path)
        await check_parts(config)

    def check_model(self, engine: EndpointConfig, model: str) -> None:
        """Refuse a model that cannot be reached, without a request."""

    def upstream(
        self, engine: EndpointConfig, *, model: str, api_key: str, timeout_s: float
    ) -> Upstream:
        """Return the client of the model."""
        from arl_endpoints.upstream import OpenAIUpstream

        return OpenAIUpstream(engine, model=model, api_key=api_key, timeout_s=timeout_s)

    @contextlib.asynccontextmanager
    async def serving(
        self, config: Config, engine: EndpointConfig, *, advice: str = ""
    ) -> AsyncGenerator[Player]:
        from agentgym_rl.gateway import AgentClients
        from agentgym_rl.rollout import env_spec, make_player
        from agentgym_rl.rollout.factory import services
        from arl_endpoints.relay import Relay

        timeout_s = engine.request_timeout_s or config.rollout.turn_timeout_s
        key, model = self._api_key(engine), config.model.path
        upstream = self.upstream(engine, model=model, api_key=key, timeout_s=timeout_s)
        upstream.advice = advice
        spec = env_spec(config.env, config.rollout)
        relay = Relay(upstream, config=config.gateway)
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(upstream.watch(), name="watch endpoint")
            async with (
                upstream,
                services(spec, config.sandbox, config.verifier_options) as given,
                relay.serve() as base_url,
                AgentClients(base_url) as clients,
            ):
                yield make_player(
                    spec,
                    config.agent,
                    config.rollout,
                    relay,
                    clients,
                    upstream.model,
                    env_id=config.env.id,
                    services=given,
                )
            watch.cancel()

    def _api_key(self, engine: EndpointConfig) -> str:
        """Return the key, or "" if none is needed or LiteLLM finds it itself."""
        if not engine.api_key_env:
            return ""
        key = os.environ.get(engine.api_key_env, "").strip()
        if not key:
            raise ConfigError(
                f"no API key for {self.place(engine)}: the environment variable "
                f"{engine.api_key_env} (engine.api_key_env) is not set; `--engine.api_key_env=` is "
                "for servers without a key"
            )
        return key


class LiteLLMEndpoint(OpenAIEndpoint):
    """The endpoints that LiteLLM reaches; `check` also refuses a missing LiteLLM, and providers
    that it does not know."""

    section = LiteLLMEngineConfig
    order: ClassVar[int] = 4

    def place(self, engine: EndpointConfig) -> str:
        return engine.base_url or "LiteLLM"

    def check_model(self, engine: EndpointConfig, model: str) -> None:
        from arl_endpoints.litellm_upstream import check_model

        check_model(engine, model)

    def upstream(
        self, engine: EndpointConfig, *, model: str, api_key: str, timeout_s: float
    ) -> Upstream:
        from arl_endpoints.litellm_upstream import LiteLLMUpstream

        return LiteLLMUpstream(engine, model=model, api_key=api_key, timeout_s=timeout_s)


OPENAI, LITELLM = OpenAIEndpoint(), LiteLLMEndpoint()
