"""An adapter of `env.step` for frameworks that run the loop themselves.

    a reply of the model ──► say(message) ── one step ──► answer(call id), once per call
                                                    └──► more, ended

An environment is stepped with complete assistant messages; frameworks call single tools. All calls
of one message are one step, so a framework first passes the message to `say`, and its tools only
look up the environment's answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_rl import Env, Message, ToolSpec
from agentgym_rl.gym.tool_env import text_of


class EnvTools:
    """The tools of an episode's environment, answered by a step before the framework calls them."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._answers: dict[str, str] = {}
        self._num_calls = 0
        self.num_steps = 0
        self.ended = False
        """Whether the episode has ended: then no more steps are allowed."""
        self.more: list[Message] = []
        """The environment's reply to the last message, without the answers to its calls."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools as OpenAI functions."""
        return self._env.tools

    async def say(self, message: Message) -> None:
        """Step the environment with an assistant message, all of its calls at once."""
        step = await self._env.step(message)
        self.num_steps += 1
        self.ended = step.terminated or step.truncated
        answers = [each for each in step.observation if each.get("role") == "tool"]
        self._answers = {each["tool_call_id"]: text_of(each) for each in answers}
        self.more = [each for each in step.observation if each.get("role") != "tool"]

    def answer(self, call_id: str) -> str:
        """Return the environment's answer to a call of the last message."""
        return self._answers.get(call_id, "error: the environment did not answer this call")

    async def call(self, name: str, arguments: str) -> str:
        """Step with a single call whose message is not known. Return its answer, followed by the
        environment's other messages, such as a user's next message."""
        self._num_calls += 1
        call_id = f"call_{self._num_calls}"
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        await self.say({"role": "assistant", "content": None, "tool_calls": [call]})
        return "\n\n".join([self.answer(call_id), *map(text_of, self.more)])
