"""`gateway` and `serve`: the endpoint that agents talk to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section


class GatewayConfig(Section):
    """The OpenAI-compatible endpoint between agents and engine."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 picks a free port."""
    tool_parser: Literal[
        "auto", "hermes", "qwen3_xml", "llama3_json", "response_template", "none"
    ] = "auto"
    """How tool calls are read from the model's text; "auto" asks the chat template
    (docs/parsers.md)."""
    reasoning_parser: Literal["auto", "think", "none"] = "auto"
    """What becomes of thoughts: "think" takes what stands in <think>…</think> out of the content,
    "none" leaves it there; "auto" is the former if the chat template knows the tags."""
    thinking_history: Literal["as_generated", "template"] = "as_generated"
    """What a model sees of its earlier thoughts: all it generated, always; or what its chat
    template shows, which starts a new training row where a user's message makes thoughts vanish."""
    edited_calls: Literal["fork", "trust"] = "fork"
    """When a client sends a sampled tool call back with other arguments: the conversation forks,
    or goes on from what was sampled."""
    train_side_lineages: bool = True
    """Whether conversations under other system messages or tools than the main one's (of helper
    agents, for titles) train too."""
    canary_fraction: float = Field(default=0.002, ge=0, le=1)
    """Share of turns compared with a rendering of the whole conversation (`canary_…` counters)."""
    max_body_bytes: int = Field(default=4_000_000, ge=1_000)
    """Larger requests are refused with 413."""
    disconnect_grace_s: float = Field(default=2.0, ge=0)
    """How long a reply is sampled on when its client hung up: SDKs ask again, and then get it."""
    keep_alive_s: float = Field(default=15.0, gt=0)
    """A stream that has nothing to say for so long says that it is still there."""
    max_requests: int = Field(default=4096, ge=1)
    """Requests answered at once; more are told to ask again (429)."""
    max_session_requests: int = Field(default=64, ge=1)
    """Of these: by one session."""
    max_session_turns: int = Field(default=10_000, ge=1)
    """Turns of a session; then it is refused more (403)."""


class ServeConfig(Section):
    """`arl serve`: episodes that other programs play."""

    admin_key_env: str = "ARL_ADMIN_KEY"
    """Name of the environment variable with the key that opens sessions. Where it is not set, a
    gateway on loopback makes a key up and tells it; any other host needs one."""
    max_sessions: int = Field(default=1024, ge=1)
    """Sessions open at once; more are told to ask again (429)."""
    idle_timeout_s: float = Field(default=600.0, gt=0)
    """A session that asks nothing for so long is closed, and its seat in the group is free."""
    group_timeout_s: float = Field(default=3600.0, gt=0)
    """A group that is not complete by then is dropped."""
