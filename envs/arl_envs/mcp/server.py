"""The connection to an MCP server: started, used with timeouts, ended; its tools and results in the
format of the OpenAI API."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from agentgym_rl import ConfigError, InfraError, ToolError, ToolSpec
from agentgym_rl.core import install_command
from agentgym_rl.runtime import bound_response

from .child import Child

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, ContentBlock, Tool


def tool_spec(tool: Tool) -> ToolSpec:
    """Return the OpenAI function tool for a tool of a server."""
    function = {
        "name": tool.name,
        "description": tool.description or tool.title or "",
        "parameters": tool.input_schema,
    }
    return {"type": "function", "function": function}


def result_text(result: CallToolResult, *, max_chars: int) -> str:
    """Return a tool's result, a paragraph per block. Structured content is shown as JSON if there
    is no text in addition (by the protocol, a server that gives both gives the same content in
    both).

    The text has at most `max_chars` characters: the middle of a longer one is left out.

    https://modelcontextprotocol.io/specification/2025-11-25/server/tools#tool-result
    """
    blocks = [_block_text(block) for block in result.content]
    has_text = any(block.type == "text" and block.text for block in result.content)
    if result.structured_content is not None and not has_text:
        blocks.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n\n".join(blocks) or "(no output)"
    if len(text) <= max_chars:
        return text
    half = max(1, (max_chars - 7) // 2)
    return f"{text[:half]} [...] {text[-half:]}"


def _block_text(block: ContentBlock) -> str:
    """Return the text of a block; for an image, a sound or a binary file, only its kind."""
    match block.type:
        case "text":
            return block.text
        case "resource":
            about = block.resource
            if text := getattr(about, "text", None):
                return f"{about.uri}:\n{text}"
            empty = "empty" if text is not None else "not shown"
            return f"({_named('resource', about.uri, about.mime_type)}: {empty})"
        case "resource_link":
            title = block.title or block.name
            more = f": {block.description}" if block.description else ""
            return f"({_named('resource', title, block.uri, block.mime_type)}{more})"
        case _:
            return f"({_named(block.type, block.mime_type)}: not shown)"


def _named(*words: object) -> str:
    return " ".join(str(word) for word in words if word)


MAX_PAGES = 100
CLOSE_TIMEOUT_S = 4.0
"""The timeout of `close`. A child gets twice `GRACE_S` of it; then, and also when `close` is
cancelled, the child and all its processes are killed."""
CANCEL_TIMEOUT_S = 1.0


@asynccontextmanager
async def _bounded(url: str, failed: Callable[[OSError], None]) -> AsyncGenerator[Any]:
    """Open the streams of a server at `url`, whose answers have a bound; `failed` gets the error
    of one that is too large, which the SDK only logs."""
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async with create_mcp_http_client({"Accept-Encoding": "identity"}) as http:
        http.event_hooks = {"response": [partial(bound_response, failed=failed)]}
        async with streamable_http_client(url, http_client=http) as streams:
            yield streams


class McpServer:
    """A connection over stdio (to a child process) or streamable HTTP.

    The SDK requires that the task that opened a connection closes it, which an environment cannot
    promise: `reset` and `close` run in different tasks. So a separate task holds the connection.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        url: str,
        env: Mapping[str, str],
        start_timeout_s: float,
        call_timeout_s: float,
        max_result_chars: int,
    ) -> None:
        self.name = url or " ".join(command)
        self.tools: Sequence[ToolSpec] = ()
        self._command, self._url, self._env = command, url, env
        self._start_timeout_s = start_timeout_s
        self._call_timeout_s = call_timeout_s
        self._max_result_chars = max_result_chars
        self._client: Client | None = None
        self._holder: asyncio.Task[None] | None = None
        self._child: Child | None = None
        self._cause: BaseException | None = None
        self._unread: OSError | None = None
        self._failed = False
        self._stderr: IO[str] | None = None
        """The standard error of the child, while there is one."""
        self._last_stderr = ""
        self._ending_of_child = ""

    async def start(self) -> None:
        """Connect and request the tools.

        Raises:
            InfraError: the server does not start, or does not answer in time.
            ConfigError: the SDK is not installed.
        """
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self._holder = asyncio.create_task(self._hold(ready), name=f"MCP server {self.name}")
        try:
            async with asyncio.timeout(self._start_timeout_s):
                self._client = client = await asyncio.shield(ready)
                self.tools = await self._list(client)
        except BaseException as error:
            limit_s = self._start_timeout_s
            is_late = isinstance(error, TimeoutError)
            late = f" in {limit_s:g} s{_advice('start_timeout_s', limit_s)}" if is_late else ""
            lost = self._lost(f"did not start{late}", error)
            await self._end()
            if isinstance(error, ConfigError) or not isinstance(error, Exception):
                raise
            raise lost from error

    @property
    def is_usable(self) -> bool:
        """Return whether the server has started and the connection has not failed since."""
        return self._client is not None and not self._failed and not self._is_over()

    async def call(self, name: str, arguments: str) -> str:
        """Call a tool with `arguments` (JSON) and return its result as text.

        Raises:
            ToolError: the arguments are no JSON object, or the tool reports a failure.
            InfraError: the server is gone, or did not answer in time.
        """
        from mcp import MCPError

        if self._client is None or self._is_over():
            raise self._lost("is gone", None)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                result = await self._client.call_tool(name, _object(arguments))
        except ToolError:
            raise
        except MCPError as error:
            if self._is_over() or not _is_the_callers_fault(error):
                raise self._lost(f"failed in a call of {name}", error) from error
            raise ToolError(error.message) from error
        except TimeoutError as error:
            limit_s = self._call_timeout_s
            what = f"did not answer a call of {name} in {limit_s:g} s"
            raise self._lost(what + _advice("call_timeout_s", limit_s), error) from error
        except Exception as error:  # from pipes, sockets, and the SDK
            raise self._lost(f"failed in a call of {name}", error) from error
        text = result_text(result, max_chars=self._max_result_chars)
        if result.is_error:
            raise ToolError(text)
        return text

    async def close(self) -> None:
        """End the connection and the child. Idempotent, bounded in time.

        If cancelled, kill the child instead of waiting for it to end by itself.
        """
        if self._holder is None:
            return
        self._ending.set()
        try:
            await asyncio.wait([self._holder], timeout=CLOSE_TIMEOUT_S)
        finally:
            await self._end()

    async def _end(self) -> None:
        """Kill the child and cancel the holding task at once."""
        holder, self._holder, self._client = self._holder, None, None
        if self._child is not None:
            self._child.kill()
        if holder is not None and not holder.done():
            holder.cancel()
            await asyncio.wait([holder], timeout=CANCEL_TIMEOUT_S)

    def _is_over(self) -> bool:
        return self._holder is None or self._holder.done()

    async def _hold(self, ready: asyncio.Future[Client]) -> None:
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            async with self._connected(self._stderr) as client:
                ready.set_result(client)
                await self._ending.wait()
        except BaseException as error:
            if ready.done():  # later calls report this cause
                self._cause = error
            else:
                ready.set_exception(error)
                ready.exception()  # marked as retrieved: the waiting task may be cancelled
            if not isinstance(error, Exception):
                raise
        finally:
            if self._child is not None:
                self._ending_of_child = self._child.ending
                self._child.kill()
            self._last_stderr = _tail(self._stderr)
            self._stderr.close()

    def _connected(self, stderr: IO[str]) -> Client:
        try:
            from mcp import Client
            from mcp.client.stdio import get_default_environment
        except ImportError as error:
            raise ConfigError(
                f"MCP servers need the package mcp: {install_command('mcp')}"
            ) from error
        if self._url:
            return Client(_bounded(self._url, self._fail))
        env = get_default_environment() | dict(self._env)
        self._child = Child(self._command, env=env, stderr=stderr)
        return Client(self._child.streams())

    async def _list(self, client: Client) -> list[ToolSpec]:
        found: list[ToolSpec] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += [tool_spec(tool) for tool in page.tools]
            cursor = page.next_cursor
            if not cursor:
                break
        return found

    def _fail(self, error: OSError) -> None:
        self._unread = error

    def _lost(self, what: str, error: BaseException | None) -> InfraError:
        self._failed = True
        unread = self._unread or (self._child and self._child.failure)
        cause = unread or error or self._cause
        while isinstance(cause, BaseExceptionGroup):  # the SDK's own tasks
            cause = cause.exceptions[0]
        why = f": {type(cause).__name__}: {cause}" if cause else ""
        ending = (
            f"; its process ended with {self._ending_of_child}" if self._ending_of_child else ""
        )
        stderr = self._last_stderr or _tail(self._stderr)
        return InfraError(
            f"MCP server {self.name} {what}{why}{ending}{f'; it said: {stderr}' if stderr else ''}"
        )


def _advice(key: str, limit_s: float) -> str:
    return f" ({key} of the wrapper; a slow one needs more, such as {4 * limit_s:g})"


def _object(arguments: str) -> dict[str, Any]:
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolError("arguments are no JSON") from error
    if not isinstance(found, dict):
        raise ToolError("arguments are no JSON object")
    return found


def _is_the_callers_fault(error: Any) -> bool:
    from mcp.types import INVALID_PARAMS, METHOD_NOT_FOUND

    return error.code in (INVALID_PARAMS, METHOD_NOT_FOUND)


def _tail(stderr: IO[str] | None, max_chars: int = 500) -> str:
    if stderr is None or stderr.closed:
        return ""
    stderr.seek(0)
    return stderr.read()[-max_chars:].strip()
