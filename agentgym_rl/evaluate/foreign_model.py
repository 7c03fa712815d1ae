"""The rollout side for an external model: a relay to its endpoint, and a player on top."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from agentgym_rl.config import (
    Config,
    EndpointConfig,
    GatewayConfig,
    LiteLLMEngineConfig,
    ModelConfig,
)
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.gateway.client import AgentClients
from agentgym_rl.gateway.relay import Relay
from agentgym_rl.gateway.relay.litellm_upstream import LiteLLMUpstream, check_model
from agentgym_rl.gateway.relay.upstream import OpenAIUpstream, Upstream
from agentgym_rl.rollout.episode import Player
from agentgym_rl.rollout.player import check_parts, env_spec, make_player, services

_OF_OUR_ENGINES = (
    *("tool_parser", "reasoning_parser", "thinking_history", "edited_calls"),
    *("train_side_lineages", "canary_fraction", "chat_template", "hidden_tools", "enable_thinking"),
)
"""The keys of `gateway` that only apply to conversations rendered and recorded by our gateway."""


async def check_endpoint(config: Config, engine: EndpointConfig) -> None:
    """Refuse a configuration that cannot work, before anything starts; sends no request.

    Raises:
        ConfigError: no model is named, the API key is missing, LiteLLM is not installed or does
            not know the provider, a key does not apply here, or `check_parts` fails.
    """
    if config.model.path == ModelConfig().path:
        raise ConfigError(
            f"--engine={engine.type} asks {place(engine)} for a model by name: pass --model NAME "
            f"({config.model.path!r} is the model of this package)"
        )
    if config.model.revision is not None:
        raise ConfigError(
            f"model.revision {config.model.revision!r} has no effect with {place(engine)}: it is "
            "for models that are loaded here; leave it out, or name the revision in --model"
        )
    for name in _OF_OUR_ENGINES:
        value = getattr(config.gateway, name)
        if value != GatewayConfig.model_fields[name].default:
            raise ConfigError(
                f"gateway.{name} {value!r} has no effect with --engine={engine.type}: the endpoint "
                "itself renders conversations and reads replies; leave it out"
            )
    if config.rollout.max_input_tokens is not None:
        raise ConfigError(
            f"rollout.max_input_tokens {config.rollout.max_input_tokens} cannot be applied with "
            f"--engine={engine.type}: the tokenizer of the model is unknown here; leave it out"
        )
    _api_key(engine)
    if isinstance(engine, LiteLLMEngineConfig):
        check_model(engine, config.model.path)
    await check_parts(config)


@contextlib.asynccontextmanager
async def serving_endpoint(config: Config, engine: EndpointConfig) -> AsyncIterator[Player]:
    """Open a player whose model is `config.model.path` at `place(engine)`.

    Raises:
        ConfigError: the endpoint refuses all requests, with the reason; raised at once, in an
            exception group.
    """
    timeout_s = engine.request_timeout_s or config.rollout.turn_timeout_s
    upstream = _upstream(engine, config.model.path, timeout_s=timeout_s)
    spec = env_spec(config.env, config.rollout)
    relay = Relay(upstream, config=config.gateway)
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(upstream.watch(), name="watch endpoint")
        async with (
            upstream,
            services(spec, config.sandbox, config.verifier) as given,
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


def place(engine: EndpointConfig) -> str:
    """Return the location of the model, for messages."""
    return engine.base_url or "LiteLLM"


def _upstream(engine: EndpointConfig, name: str, *, timeout_s: float) -> Upstream:
    key = _api_key(engine)
    if isinstance(engine, LiteLLMEngineConfig):
        return LiteLLMUpstream(engine, model=name, api_key=key, timeout_s=timeout_s)
    return OpenAIUpstream(engine, model=name, api_key=key, timeout_s=timeout_s)


def _api_key(engine: EndpointConfig) -> str:
    """Return the key, or "" if none is needed or LiteLLM finds it itself."""
    if not engine.api_key_env:
        return ""
    key = os.environ.get(engine.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"no API key for {place(engine)}: the environment variable {engine.api_key_env} "
            "(engine.api_key_env) is not set; `--engine.api_key_env=` is for servers without a key"
        )
    return key
