"""`env.step` for frameworks that run the loop themselves.

    a reply of the model ──► say(message) ── one step ──► answer(call id), once a call
                                                    └──► more, ended

An environment is stepped with whole assistant messages; frameworks think in single tool calls.
Calls that stand in one message are one step, so a framework hands over the message, and its tools
only look up what the environment said.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_rl.core.chat import Message, ToolSpec
from agentgym_rl.gym.env import Env
from agentgym_rl.gym.tool_env.calls import text_of


class EnvTools:
    """The environment of an episode as tools that have been answered before they are called."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._answers: dict[str, str] = {}
        self._num_calls = 0
        self.num_steps = 0
        self.ended = False
        """Whether the episode is over: nothing more may be said."""
        self.more: list[Message] = []
        """What the environment answered to the last message, besides its calls."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools, as OpenAI functions."""
        return self._env.tools

    async def say(self, message: Message) -> None:
        """Step the environment with an assistant message, all of its calls at once."""
        step = await self._env.step(message)
        self.num_steps += 1
        self.ended = step.terminated or step.truncated
        answers = [said for said in step.observation if said.get("role") == "tool"]
        self._answers = {said["tool_call_id"]: text_of(said) for said in answers}
        self.more = [said for said in step.observation if said.get("role") != "tool"]

    def answer(self, call_id: str) -> str:
        """What the environment answered to a call of the last message."""
        return self._answers.get(call_id, "error: the environment did not answer this call")

    async def call(self, name: str, arguments: str) -> str:
        """A step for a single call, where nobody says what message it stood in; what the
        environment says besides, such as a user's next message, follows its answer."""
        self._num_calls += 1
        call_id = f"call_{self._num_calls}"
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        await self.say({"role": "assistant", "content": None, "tool_calls": [call]})
        return "\n\n".join([self.answer(call_id), *map(text_of, self.more)])
