"""The section `gateway`: the endpoint that agents send requests to."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, field_validator

from agentgym_rl.core import Fitted, InEval, OneOf, Ordered, Section, in_order, with_added_keys


def _formats(group: str) -> OneOf:
    """Return the mark of a key whose values are the registered formats of replies of a group."""
    names = lambda: ["auto", *in_order(group, of=Ordered), "none"]  # noqa: E731
    return OneOf(names, usual="auto", group=group)


@with_added_keys("gateway")
class GatewayConfig(Section):
    """The OpenAI-compatible endpoint between agents and engine."""

    host: InEval[str] = "127.0.0.1"
    """The address at which the endpoint listens; 0.0.0.0: all of the machine's."""
    port: InEval[int] = Field(default=0, ge=0, le=65535)
    """The port; 0 picks a free one."""
    chat_template: str = "auto"
    """The chat template, by name, of a model with several; "auto" takes `tool_use` if tools are
    offered, and else `default`."""
    date: Fitted[str] = ""
    """The date and time for chat templates that write it, such as 2026-11-28 or
    2026-11-28T09:30:00. If it is not set, it is the moment at which the run begins, which the run
    records, so that its prompts never change; "" for templates that write no date."""
    hidden_tools: Literal["system", "refuse", "omit"] = "system"
    """The treatment of offered tools that the chat template does not write: "system" writes them
    into the system message (arl docs gateway#templates-without-tools), "refuse" is an error, and
    "omit" leaves it to the agent to describe them."""
    enable_thinking: bool | None = None
    """The switch for thoughts, for all requests, as the chat template's `enable_thinking` or
    `thinking`; if it is not set, requests decide, or else the template."""
    tool_parser: Annotated[str, _formats("parsers")] = "auto"
    """The parser of tool calls in the model's text; "auto" depends on the chat template
    (arl docs parsers)."""
    reasoning_parser: Annotated[str, _formats("thoughts")] = "auto"
    """The parser of thoughts: "think" removes text in <think>…</think> from the content, others
    do so with other tags (arl docs parsers), "none" leaves it there; "auto" chooses the one whose
    tags the chat template knows, if there is one."""
    thinking_history: Literal["as_generated", "template"] = "as_generated"
    """The earlier thoughts that a model sees: all that it generated, always; or those that its chat
    template shows, which starts a new training row when a user's message removes thoughts."""
    forced: Literal["grammar", "free"] = "grammar"
    """The treatment of turns that must be JSON of a schema or a tool call: "grammar" samples only
    replies of that form, and trains the policy restricted to them; "free" samples any reply, and
    the model has to learn the form (arl docs gateway#forced-turns)."""
    sampling: Literal["request", "session"] = "request"
    """The treatment of `top_p`, penalties and other sampling parameters of clients: "request"
    honours or refuses them, "session" ignores them all, and samples as the run is configured
    (arl docs gateway#sampling-parameters-of-clients)."""
    edited_calls: Literal["fork", "trust"] = "fork"
    """The reaction to a client that returns a sampled tool call with other arguments: the
    conversation forks, or continues from the sampled call."""
    unreadable: Literal["placeholder", "refuse"] = "placeholder"
    """The treatment of message parts that a text model cannot read (images, documents, audio): a
    short text in their place, such as [image 640×480], or an error
    (arl docs gateway#images-and-other-parts)."""
    train_side_lineages: bool = True
    """The switch to train conversations with other system messages or tools than the main one, too
    (of helper agents, for titles)."""
    max_body_bytes: int = Field(default=4_000_000, ge=1_000)
    """The maximum size of a request; larger ones are refused with 413."""
    disconnect_grace_s: float = Field(default=2.0, ge=0)
    """The time of sampling after a client disconnects: SDKs retry, and then get the reply."""
    keep_alive_s: float = Field(default=15.0, gt=0)
    """The longest silence of a stream before it sends a keep-alive."""
    max_requests: int = Field(default=4096, ge=1)
    """The maximum number of concurrent requests; more get 429 (retry)."""
    max_session_requests: int = Field(default=64, ge=1)
    """The maximum number of concurrent requests of one session."""
    max_session_turns: int = Field(default=10_000, ge=1)
    """The maximum number of turns of a session; more are refused (403)."""

    @field_validator("date")
    @classmethod
    def _is_date(cls, date: str) -> str:
        if date:
            try:
                datetime.fromisoformat(date)
            except ValueError:
                raise ValueError(
                    "expected a date, as 2026-11-28, or with a time, as 2026-11-28T09:30:00"
                ) from None
        return date

    @property
    def moment(self) -> datetime | None:
        """Return `date`; None if it is not set."""
        return datetime.fromisoformat(self.date) if self.date else None
