"""An agent of the OpenAI Agents SDK: the SDK runs the loop with the environment's tools."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentgym_rl import Agent, Env, Message, Task, ToolSpec
from agentgym_rl.gym import Spec

from .bridge import EnvTools
from .extras import import_extra

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SPEC = Spec(
    id="openai_agents-v0",
    kind="agent",
    entry_point="arl_agents.openai_agents:OpenAIAgents",
    description="Multi-turn tool use by the OpenAI Agents SDK.",
)


class OpenAIAgents(Agent):
    """An agent of the SDK, run again with the environment's next messages until the episode ends,
    for at most `max_turns` model replies. Needs the extra `openai-agents`.

    `api`: the API it uses, "chat" (completions) or "responses", which is the SDK's own default.
    """

    def __init__(self, *, max_turns: int = 256, api: str = "chat") -> None:
        if max_turns < 1:
            raise TypeError(f"max_turns: got {max_turns}, expected at least 1")
        if api not in _MODELS:
            raise TypeError(f"api: got {api!r}, allowed: {', '.join(_MODELS)}")
        self.max_turns, self._api = max_turns, api
        # not `agents` alone: any folder of that name can be imported
        import_extra("agents.tool", extra="openai-agents", needed_by="openai_agents")
        self._sdk: Any = import_module("agents")

    async def run(self, env: Env, client: AsyncOpenAI, *, model: str, task: Task) -> None:
        sdk, tools = self._sdk, EnvTools(env)
        messages: list[Any] = list((await env.reset())[0])
        agent = sdk.Agent(
            name=model,
            model=getattr(sdk, _MODELS[self._api])(model, client),
            tools=[_tool(sdk, spec, tools) for spec in env.tools],
            tool_use_behavior=lambda *_: sdk.ToolsToFinalOutputResult(bool(tools.more), ""),
        )
        hooks, config = _hooks(sdk, tools), _config(sdk, tools)
        with suppress(_Over, sdk.MaxTurnsExceeded):
            while not tools.ended and (left := self.max_turns - tools.num_steps) > 0:
                try:
                    run = await sdk.Runner.run(
                        agent, messages, max_turns=left, hooks=hooks, run_config=config
                    )
                except sdk.ModelBehaviorError:  # an unreadable reply
                    if not hooks.is_waiting:
                        raise
                    return await tools.say(_EMPTY)
                empty = [] if run.new_items else [_EMPTY]  # the SDK drops an empty reply
                messages = [*run.to_input_list(), *empty, *tools.more]


_MODELS = {"chat": "OpenAIChatCompletionsModel", "responses": "OpenAIResponsesModel"}
"""The SDK's model class for each API."""
_EMPTY: Message = {"role": "assistant", "content": ""}


class _Over(Exception):
    """The signal that the episode has ended and the model must not be called again."""


def _tool(sdk: Any, spec: ToolSpec, tools: EnvTools) -> Any:
    """Make an SDK tool of an environment's tool, with an unchanged schema."""

    async def answer(context: Any, arguments: str) -> str:
        return tools.answer(context.tool_call_id)

    function = spec["function"]
    return sdk.FunctionTool(
        name=function["name"],
        description=function.get("description", ""),
        params_json_schema=dict(function.get("parameters") or _NO_PARAMETERS),
        on_invoke_tool=answer,
        strict_json_schema=False,
    )


_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def _hooks(sdk: Any, tools: EnvTools) -> Any:
    class Hooks(sdk.RunHooks):
        is_waiting = False
        """Whether a reply of the model is pending."""

        async def on_llm_start(self, *_: Any) -> None:
            if tools.ended:
                raise _Over
            self.is_waiting = True

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            self.is_waiting = False
            await tools.say(_message(response.output))

    return Hooks()


def _config(sdk: Any, tools: EnvTools) -> Any:
    return sdk.RunConfig(
        tracing_disabled=True,  # traces would be sent to OpenAI
        tool_not_found_behavior="return_error_to_model",
        tool_error_formatter=lambda failed: tools.answer(failed.call_id),
    )


def _message(output: Sequence[Any]) -> Message:
    """Join the items of a reply to the assistant message that they came from."""
    texts = [
        part.text
        for item in output
        if item.type == "message"
        for part in item.content
        if part.type == "output_text"
    ]
    calls = [
        {
            "id": item.call_id,
            "type": "function",
            "function": {"name": item.name, "arguments": item.arguments},
        }
        for item in output
        if item.type == "function_call"
    ]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    return message | ({"tool_calls": calls} if calls else {})
