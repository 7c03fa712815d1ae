"""The section `serve`, which this extension adds to the configuration."""

from __future__ import annotations

from pydantic import Field

from agentgym_rl.core import Anytime, Section


class ServeConfig(Section):
    """The section of `arl serve`: episodes that other programs play."""

    admin_key_env: str = "ARL_ADMIN_KEY"
    """The name of the environment variable with the key that opens sessions. If it is not set, a
    gateway on loopback generates and reports a key; any other host needs the variable."""
    max_sessions: int = Field(default=1024, ge=1)
    """The maximum number of open sessions; more are refused with 429 (retry)."""
    idle_timeout_s: float = Field(default=600.0, gt=0)
    """The time without requests after which a session is closed and its group seat is freed."""
    group_timeout_s: float = Field(default=3600.0, gt=0)
    """The time after which an incomplete group is dropped."""


class ServeKeys(Section):
    """The section `serve`, added to the configuration."""

    after = "eval"

    serve: Anytime[ServeConfig] = ServeConfig()
