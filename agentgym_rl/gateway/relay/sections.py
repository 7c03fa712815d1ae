"""The sections `engine` of models that are served elsewhere."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentgym_rl.config.engine import EndpointConfig


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
