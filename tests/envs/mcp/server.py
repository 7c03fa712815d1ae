"""A real MCP server: `python server.py` speaks over stdio, `python server.py PORT` over HTTP.

`python server.py stubborn` speaks over stdio, and does not end when it is asked to.
"""

import os
import signal
import sys
import time

from mcp.server import MCPServer

server = MCPServer("counter")
count = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def tick() -> int:
    """How often this was asked."""
    global count
    count += 1
    return count


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@server.tool()
def die() -> str:
    """Ends the server."""
    print("going down", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def sleep(seconds: float) -> str:
    """Says nothing for a while."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def write(length: int) -> str:
    """A long text."""
    return "x" * length


@server.tool()
def variable(name: str) -> str:
    """An environment variable."""
    return os.environ.get(name, "(not set)")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            server.run("stdio")
        case ["stubborn"]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            server.run("stdio")
            time.sleep(600)
        case [port]:
            server.run("streamable-http", host="127.0.0.1", port=int(port))
