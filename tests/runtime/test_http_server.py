"""A server in this process is closed however its context ends."""

import socket

import pytest
import uvloop

from agentgym_rl.runtime.http_server import reply, serving


async def app(scope, receive, send):
    await reply(send, 200, b"{}")


def test_a_server_is_closed_after_an_error():
    """Or else its loop, which closes when all its sockets are closed, never does."""
    urls = []

    async def fail():
        async with serving(app, host="127.0.0.1", port=0) as url:
            urls.append(url)
            raise KeyError("mine")

    loop = uvloop.new_event_loop()
    with pytest.raises(ExceptionGroup) as held:
        loop.run_until_complete(fail())
    assert held.group_contains(KeyError, match="mine")
    with pytest.raises(ConnectionRefusedError), socket.socket() as client:
        client.connect(("127.0.0.1", int(urls[0].rpartition(":")[2])))
    loop.close()
