"""A software engineer: the reference agent for tasks in a terminal and a repository.

The environment gives the task and the tools (`bash` and `edit`, of `harbor`). The agent adds advice
on how to work. When its conversation grows long, it requests a summary from the model, and
continues from the summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentgym_rl import Env, Message, Task
from agentgym_rl.gym import Spec

from .react import React, assistant_message, thoughts

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SPEC = Spec(
    id="swe-v0",
    kind="agent",
    entry_point="arl_agents.swe:Swe",
    description="A software engineer with a shell: edits, runs the tests, sums up when it is long.",
)

METHOD = """\
Work in small steps: read what matters, reproduce the problem, change as little as possible, \
and run the tests again. Commands run in a shell that keeps its folder and variables. In the end \
reply without a tool call: one sentence on what you changed."""
"""The advice on how to work, added to the first system message."""

SUMMARY_REQUEST = """\
The conversation is about to be shortened. Write down all that is needed to go on without it: the \
task's state, what you found and changed (paths, names), what failed, and the next steps. \
Do not call a tool."""
SUMMARY = "A summary of the work so far, which you wrote yourself:\n\n"


class Swe(React):
    """An agent that works as `react` does, with advice, and with summaries of long conversations.

    Args:
        max_turns: The most replies of the model, summaries included.
        advice: The advice for the first system message; "": none (a model that was trained on
            short prompts needs none).
        summary_tokens: The number of tokens of a conversation (prompt and reply of its last turn)
            from which a summary is requested; 0: never. Choose about 3/4 of the engine's context.
    """

    def __init__(
        self, *, max_turns: int = 256, advice: str = METHOD, summary_tokens: int = 0
    ) -> None:
        super().__init__(max_turns=max_turns)
        if summary_tokens < 0:
            raise TypeError(f"summary_tokens: got {summary_tokens}, expected at least 0")
        self.advice, self.summary_tokens = advice, summary_tokens

    async def run(self, env: Env, client: AsyncOpenAI, *, model: str, task: Task) -> None:
        first = self._advised((await env.reset())[0])
        messages = list(first)
        tools: Any = {"tools": list(env.tools)} if env.tools else {}
        num_replies = 0
        while num_replies < self.max_turns:
            reply = await self.complete(client, model=model, messages=messages, **tools)
            num_replies += 1
            action = assistant_message(reply.choices[0].message)
            step = await env.step(action | thoughts(reply.choices[0].message))
            if step.terminated or step.truncated:
                return
            messages += [action, *step.observation]
            if self._is_long(reply) and num_replies < self.max_turns:
                request = [*messages, {"role": "user", "content": SUMMARY_REQUEST}]
                reply = await self.complete(client, model=model, messages=request, **tools)
                num_replies += 1
                messages = [*first, _summary(reply.choices[0].message.content)]

    def _advised(self, messages: Sequence[Message]) -> list[Any]:
        """Return the first messages with the advice at the end of the system message."""
        if not self.advice:
            return list(messages)
        head, *rest = messages
        if head["role"] != "system":
            return [{"role": "system", "content": self.advice}, *messages]
        return [{**head, "content": f"{head['content']}\n{self.advice}"}, *rest]

    def _is_long(self, reply: Any) -> bool:
        used = reply.usage.total_tokens if reply.usage else 0
        return 0 < self.summary_tokens <= used


def _summary(text: str | None) -> Message:
    """Return the message that stands for the earlier conversation."""
    return {"role": "user", "content": SUMMARY + (text or "(nothing was written down)")}
