"""The tools of one episode as an MCP server over streamable HTTP, on loopback.

    program ──tools/call──► handler ──► Calls ──► the agent's task ──► env.step
                               ▲                         │
                               └───────── answer ◄───────┘

The agent's own task makes the steps, one after the other: a program that disconnects cannot cancel
a step, and an exception in a step reaches the agent.
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

from agentgym_rl import ToolSpec
from agentgym_rl.runtime import Receive, Scope, Send, serving
from agentgym_rl.runtime.http_server import reply

MAX_WAITING = 64
"""The number of calls that may wait for their turn."""
OVER = "error: the episode has ended"
BUSY = f"error: {MAX_WAITING} calls wait already"


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A tool call whose caller waits for the answer."""

    name: str
    arguments: str
    """The arguments as JSON, as received over MCP."""
    _answer: asyncio.Future[str]

    @property
    def is_awaited(self) -> bool:
        """Return whether the caller still waits."""
        return not self._answer.done()

    def reply(self, text: str) -> None:
        if self.is_awaited:
            self._answer.set_result(text)


class Calls:
    """A queue of tool calls in the order of their arrival, until it is closed."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[PendingCall | None] = asyncio.Queue()
        self._closed = False

    def close(self) -> None:
        """Close the queue; waiting and later calls are answered that the episode has ended."""
        self._closed = True
        while not self._waiting.empty():
            if (call := self._waiting.get_nowait()) is not None:
                call.reply(OVER)
        self._waiting.put_nowait(None)

    async def add(self, name: str, arguments: str) -> str:
        """Queue a call and return its answer."""
        if self._closed:
            return OVER
        if self._waiting.qsize() >= MAX_WAITING:
            return BUSY
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(PendingCall(name, arguments, answer))
        return await answer

    async def next(self) -> PendingCall | None:
        """Return the next call whose caller still waits; None when closed."""
        while (call := await self._waiting.get()) is not None:
            if call.is_awaited:
                return call
        return None


@asynccontextmanager
async def serving_tools(tools: Sequence[ToolSpec], calls: Calls) -> AsyncIterator[str]:
    """Serve `tools` while the context is open; yield the URL, which contains a secret."""
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
        text = await calls.add(params.name, arguments)
        content = TextContent(type="text", text=text)
        return CallToolResult(content=[content], is_error=text.startswith("error: "))

    return Server("environment", on_list_tools=list_tools, on_call_tool=call_tool)


def _tool(spec: ToolSpec) -> Any:
    """Convert an OpenAI function to an MCP tool."""
    from mcp.types import Tool

    function = spec["function"]
    schema = dict(function.get("parameters") or {})
    return Tool(
        name=function["name"],
        description=function.get("description", ""),
        input_schema={"type": "object"} | schema,
    )
