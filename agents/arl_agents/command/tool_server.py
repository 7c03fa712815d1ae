"""The tools of one episode as an MCP server over streamable HTTP, on loopback.

    program ──tools/call──► handler ──► Calls ──► the agent's task ──► env.step
                               ▲                         │
                               └───────── answer ◄───────┘

Steps are made by the agent's own task, one after the other: a program that hangs up cannot cancel
a step, and a step that fails fails the agent.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core.chat import ToolSpec
from agentgym_rl.runtime.http_server import Receive, Scope, Send, reply, serving

MAX_WAITING = 64
"""Calls that may wait for their turn."""
OVER = "error: the episode has ended"
BUSY = f"error: {MAX_WAITING} calls wait already"


@dataclass(frozen=True, slots=True)
class Asked:
    """A call whose answer somebody waits for."""

    name: str
    arguments: str
    """JSON, as it came over MCP."""
    _answer: asyncio.Future[str]

    @property
    def is_awaited(self) -> bool:
        """Whether who asked still waits."""
        return not self._answer.done()

    def reply(self, text: str) -> None:
        if self.is_awaited:
            self._answer.set_result(text)


class Calls:
    """Calls in the order they came, until it is closed."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Asked | None] = asyncio.Queue()
        self._closed = False

    def close(self) -> None:
        """Hand out no more; those that wait, and later ones, are told that it is over."""
        self._closed = True
        while not self._waiting.empty():
            if (asked := self._waiting.get_nowait()) is not None:
                asked.reply(OVER)
        self._waiting.put_nowait(None)

    async def ask(self, name: str, arguments: str) -> str:
        """The answer to a call, once it had its turn."""
        if self._closed:
            return OVER
        if self._waiting.qsize() >= MAX_WAITING:
            return BUSY
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(Asked(name, arguments, answer))
        return await answer

    async def next(self) -> Asked | None:
        """The next call that is still awaited; None when closed."""
        while (asked := await self._waiting.get()) is not None:
            if asked.is_awaited:
                return asked
        return None


@asynccontextmanager
async def serving_tools(tools: Sequence[ToolSpec], calls: Calls) -> AsyncIterator[str]:
    """Serve `tools` while the context is open; yields the URL, which holds a secret."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    path = f"/{secrets.token_hex(16)}/mcp"
    manager = StreamableHTTPSessionManager(
        _server(tools, calls), json_response=True, stateless=True
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if not hmac.compare_digest(str(scope["path"]).encode(), path.encode()):
            return await reply(send, 404, b'{"error": "no such server"}')
        await manager.handle_request(scope, receive, send)

    async with manager.run(), serving(app, host="127.0.0.1", port=0) as url:
        try:
            yield url + path
        finally:
            calls.close()


def _server(tools: Sequence[ToolSpec], calls: Calls) -> Any:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, ListToolsResult, TextContent

    listed = ListToolsResult(tools=[_tool(spec) for spec in tools])

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return listed

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        arguments = json.dumps(params.arguments or {}, ensure_ascii=False)
        text = await calls.ask(params.name, arguments)
        said = TextContent(type="text", text=text)
        return CallToolResult(content=[said], is_error=text.startswith("error: "))

    return Server("environment", on_list_tools=list_tools, on_call_tool=call_tool)


def _tool(spec: ToolSpec) -> Any:
    """A tool of MCP for an OpenAI function."""
    from mcp.types import Tool

    function = spec["function"]
    schema = dict(function.get("parameters") or {})
    return Tool(
        name=function["name"],
        description=function.get("description", ""),
        input_schema={"type": "object"} | schema,
    )
