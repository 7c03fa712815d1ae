"""A wrapper that adds the tools of an MCP server to an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl import ConfigError, Env, Message, Step, ToolSpec
from agentgym_rl.gym.tool_env import Call, answer_calls, listed
from agentgym_rl.gym.wrappers import Wrapper

from .server import McpServer


class McpTools(Wrapper):
    """A wrapper that adds a server's tools to the environment's own. Calls of the server's tools
    do not reach the environment.

    `command` starts a server over stdio, a new one for each episode, so that no episode sees the
    state of another; or `url` is that of a server over streamable HTTP, which all episodes share.
    `variables` are more environment variables for the command (it inherits only PATH, HOME and the
    like). `tools` names the tools to offer (default: all); `prefix` is put before their names.

    A failing tool is answered with a message that starts "error:"; a failing server is an
    infrastructure failure.

    Raises:
        ConfigError: neither or both of command and url; from `reset`: no such tool, or one that
            the environment has too.
        InfraError: from `reset` and `step`: the server does not start, is gone or does not answer.
    """

    def __init__(
        self,
        env: Env,
        *,
        command: Sequence[str] = (),
        url: str = "",
        variables: Mapping[str, str] | None = None,
        tools: Sequence[str] | None = None,
        prefix: str = "",
        start_timeout_s: float = 30.0,
        call_timeout_s: float = 30.0,
        max_result_chars: int = 8000,
    ) -> None:
        super().__init__(env)
        if isinstance(command, str) or bool(command) == bool(url):
            raise ConfigError(
                f"McpTools takes a command (a list of words, got {command!r}) or a url (got "
                f"{url!r}), and not both"
            )
        self._new_server = lambda: McpServer(
            command=command,
            url=url,
            env=variables or {},
            start_timeout_s=start_timeout_s,
            call_timeout_s=call_timeout_s,
            max_result_chars=max_result_chars,
        )
        self._is_shared = bool(url)
        self._chosen, self._prefix = tools, prefix
        self._server: McpServer | None = None
        self._offered: list[ToolSpec] = []
        self._counts: dict[str, int] = {}
        self._task_id: str | None = None

    @property
    def tools(self) -> Sequence[ToolSpec]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return [*self.env.tools, *self._offered]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        found = await self.env.reset(seed=seed, options=options)
        if self._server is not None and not (self._is_shared and self._server.is_usable):
            await self._end()
        if self._server is None:
            server = self._new_server()
            await server.start()
            self._server = server
        self._offered = self._chosen_of(self._server)
        self._task_id = found[1].get("task_id")
        self._counts = {"mcp_calls": 0, "mcp_errors": 0}
        return found

    async def step(self, action: Message) -> Step:
        names = {tool["function"]["name"] for tool in self._offered}
        calls = listed(action.get("tool_calls") or [])
        ours = [call for call in calls if _name(call) in names]
        if not ours:
            return await self.env.step(action)
        answered = await answer_calls(ours, self._call)
        counted = {"mcp_calls": len(ours), "mcp_errors": len(answered.errors)}
        theirs = [call for call in calls if _name(call) not in names]
        step = Step([], 0.0, False, False, {"task_id": self._task_id} if self._task_id else {})
        if theirs:
            step = await self.env.step({**action, "tool_calls": theirs})
        errors = [*step.info.get("tool_errors", ()), *answered.errors]
        info = {**step.info, "metrics": {**step.info.get("metrics", {}), **self._total(counted)}}
        if errors:
            info["tool_errors"] = errors
        messages = _in_order(calls, names, answered.messages, step.observation)
        return step._replace(observation=messages, info=info)

    async def close(self) -> None:
        try:
            await self.env.close()
        finally:
            await self._end()

    def _total(self, counted: Mapping[str, int]) -> dict[str, int]:
        self._counts = {name: self._counts[name] + count for name, count in counted.items()}
        return self._counts

    async def _end(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None

    def _call(self, call: Call) -> Any:
        assert self._server is not None
        return self._server.call(call.name.removeprefix(self._prefix), call.arguments)

    def _chosen_of(self, server: McpServer) -> list[ToolSpec]:
        known = {tool["function"]["name"]: tool["function"] for tool in server.tools}
        wanted = list(known) if self._chosen is None else list(self._chosen)
        if missing := [name for name in wanted if name not in known]:
            raise ConfigError(
                f"MCP server {server.name} has no tools {missing}; it has {', '.join(known)}"
            )
        own = {tool["function"]["name"] for tool in self.env.tools}
        if twice := sorted(own & {self._prefix + name for name in wanted}):
            raise ConfigError(
                f"the environment and MCP server {server.name} both have tools {twice}; give the "
                "server's another name by prefix="
            )
        return [
            {"type": "function", "function": {**known[name], "name": self._prefix + name}}
            for name in wanted
        ]


def _name(call: Mapping[str, Any]) -> str | None:
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _in_order(
    calls: Sequence[Mapping[str, Any]],
    names: set[str],
    ours: Sequence[Message],
    observed: Sequence[Message],
) -> list[Message]:
    """Return the answers in the order of the calls, then the environment's other messages."""
    mine, theirs = iter(ours), iter([m for m in observed if m.get("role") == "tool"])
    answers = [next(mine if _name(call) in names else theirs, None) for call in calls]
    others = [message for message in observed if message.get("role") != "tool"]
    return [*(message for message in answers if message is not None), *others]
