"""What is played, by whom, and where programs of theirs run."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .section import Section


class EnvConfig(Section):
    """What is played."""

    id: str = "math"
    """Registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of `make`: the environment's own (`--env.options.level=2`), and those that
    every environment has: max_turns, wrappers, max_attempts, feedback, retry_discount and
    success_reward (`EnvSpec` explains them)."""


class AgentConfig(Section):
    """Who plays."""

    id: str = "react"
    """Registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the agent (`--agent.options.max_turns=3`)."""


class SandboxConfig(Section):
    """Where programs that agents or environments run are contained."""

    id: str = "local"
    """Registered id (local, docker, e2b), or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the backend (`--sandbox.options.slots=16`)."""


class VerifierConfig(Section):
    """Processes for verifiers that may hang, crash, or run what they judge; started where the
    environment uses them."""

    num_workers: int = Field(default=2, ge=1, le=128)
    """Processes, each of which answers one call at a time."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest call, from its dispatch to a free process on; it is tried twice."""
    memory_mb: int = Field(default=2048, ge=64)
    """Memory (address space) that a process may take."""


class ModelConfig(Section):
    """The policy that is trained."""

    path: str = "bundled"
    """"bundled" (the tiny model of this package that was warmed up for the environment; or name
    it: bundled/math, bundled/tools, bundled/frozenlake, bundled/code), a local folder, or a
    Hugging Face id; with engine.type "openai", the model's name at that URL, with "litellm"
    PROVIDER/NAME."""
    revision: str | None = None
    """Commit, tag or branch of a Hugging Face id."""
