"""The sections of the environment, the agent, the sandbox, the verifier and the model."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .section import Section


class EnvConfig(Section):
    """The environment."""

    id: str = "math"
    """The registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of `make`: the environment's own (`--env.options.level=2`), and those
    that every environment has: max_turns, wrappers, max_attempts, feedback, retry_discount and
    success_reward (`EnvSpec` explains them)."""


class AgentConfig(Section):
    """The agent."""

    id: str = "react"
    """The registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of the agent (`--agent.options.max_turns=3`)."""


class SandboxConfig(Section):
    """The sandbox for programs that agents or environments run."""

    id: str = "local"
    """The registered id (local, docker, e2b), or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of the backend (`--sandbox.options.slots=16`)."""


class VerifierConfig(Section):
    """The processes for verifiers that may hang, crash, or run the judged code; started if the
    environment uses them."""

    num_workers: int = Field(default=2, ge=1, le=128)
    """The number of processes, each of which answers one call at a time."""
    timeout_s: float = Field(default=5.0, gt=0)
    """The longest call, from its dispatch to a free process on; a call is tried twice."""
    memory_mb: int = Field(default=2048, ge=64)
    """The memory (address space) that a process may take."""


class ModelConfig(Section):
    """The policy that is trained."""

    path: str = "bundled"
    """The model: "bundled" (the tiny model of this package that was warmed up for the environment;
    or by name: bundled/math, bundled/tools, bundled/frozenlake, bundled/code, bundled/bugs,
    bundled/agents), a local folder, or a Hugging Face id; with engine.type "openai", the model's
    name at that URL, with "litellm" PROVIDER/NAME."""
    revision: str | None = None
    """The commit, tag or branch of a Hugging Face id."""
