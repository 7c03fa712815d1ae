"""The criteria for an environment's messages: valid in any chat API, and only new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.check.criterion import NotJudged, Violation, criterion
from agentgym_rl.gym.check.forms import messages_problem, tools_problem
from agentgym_rl.gym.check.play import Play
from agentgym_rl.gym.check.subject import Subject

_IN_STEPS = ("system", "developer", "user", "tool", "assistant")  # assistant: `new-messages`


@criterion(
    "first-messages",
    "reset's messages are valid OpenAI chat messages, and JSON",
    fix='say {"role": "system" | "user", "content": text}; text must be valid Unicode',
    needs=("reset-tuple",),
)
async def first_messages(subject: Subject) -> None:
    for play in await subject.plays():
        if problem := messages_problem(play.first or ()):
            raise Violation(f"task {play.task.id}: {problem}")


@criterion(
    "tools",
    "tools are OpenAI function schemas with valid JSON Schema as parameters",
    fix="agentgym_rl.ToolEnv makes schemas from type hints; by hand: a name, a description, and "
    'parameters of type "object" whose required names are all in properties',
    needs=("reset-tuple",),
)
async def tools(subject: Subject) -> None:
    for play in await subject.plays():
        if problem := tools_problem(play.env.tools):
            raise Violation(problem)


@criterion(
    "observations",
    "step's messages are valid OpenAI messages, and JSON, whatever the action is",
    fix="make content text (str(…), repr(…) or ascii(…) of what the model sent: it may hold lone "
    "surrogates); a tool message needs the tool_call_id of its call, as text",
    needs=("step-tuple",),
)
async def observations(subject: Subject) -> None:
    for play in await subject.plays():
        for raw in play.raw_steps:
            if problem := messages_problem(raw[0], _IN_STEPS):
                raise Violation(f"{play}: {problem}")


@criterion(
    "tool-results",
    "every tool call is answered by one tool message with its id, in order",
    fix="answer each of action['tool_calls'], unknown tools and bad arguments included, with "
    '{"role": "tool", "tool_call_id": call["id"], "content": …}, or end the episode',
    needs=("tools", "observations"),
)
async def tool_results(subject: Subject) -> None:
    called = 0
    for play in await subject.plays():
        if not play.env.tools:
            raise NotJudged("the environment offers no tools")
        for action, step in zip(play.actions, play.steps, strict=False):
            got = [m.get("tool_call_id") for m in step.observation if m.get("role") == "tool"]
            wanted = _ids(action)
            called += len(wanted or ())
            if wanted is None or got == wanted or (not got and step.terminated):
                continue
            raise Violation(f"{play}: calls {wanted!r:.200} were answered as {got!r:.200}")
    if not called:
        raise NotJudged("nobody called a tool")


def _ids(action: Mapping[str, Any]) -> list[str] | None:
    """Return the ids of the action's tool calls; None if any call is malformed."""
    calls = action.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        return None
    ids = [call.get("id") for call in calls]
    well = all(isinstance(id, str) and id for id in ids) and len(set(ids)) == len(ids)
    return (
        ids if well and all(isinstance(call.get("function"), Mapping) for call in calls) else None
    )


@criterion(
    "new-messages",
    "an observation holds the new messages only, none of the agent's and none said before",
    fix="return what is new in this step; the agent keeps the conversation",
    needs=("step-tuple",),
)
async def new_messages(subject: Subject) -> None:
    for play in await subject.plays():
        for action, raw in zip(play.actions, play.raw_steps, strict=False):
            if problem := _old(play, action, raw[0]):
                raise Violation(f"{play}: the observation {problem}: {raw[0]!r:.200}")


def _old(play: Play, action: Any, observation: list[Any]) -> str:
    if action in observation:
        return "repeats the action"
    if any(message.get("role") == "assistant" for message in observation):
        return "speaks for the assistant"
    first = play.first or []
    said_again = first and len(observation) > 1 and observation[: len(first)] == first
    return "begins with the first messages again" if said_again else ""


@criterion(
    "nothing-mutated",
    "actions are not changed by step, nor messages after they were returned",
    fix="copy what you keep: `dict(action)`, `list(messages)`; never append to a list that was "
    "returned",
    needs=("reset-tuple",),
)
async def nothing_mutated(subject: Subject) -> None:
    for play in await subject.plays():
        if problem := play.spy.changed():
            raise Violation(f"{play}: {problem}")
