"""The small HTTP client: what servers may do with a reply, and with a connection."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop

from agentgym_rl.engines.client.http import BadReply, HttpPool, ServerDisconnectedError
from tests.kit.cases import cases

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@asynccontextmanager
async def _served(*replies):
    """(pool, heads seen, connections) of a server that writes `replies` in turn; None hangs up."""
    heads, writers, handlers, left = [], [], [], list(replies)

    async def handle(reader, writer):
        handlers.append(asyncio.current_task())
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while left:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                await reader.readexactly(size)
                heads.append(head)
                data = left.pop(0)
                if data is None:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        pool = HttpPool(f"http://a:b%20c@127.0.0.1:{server.sockets[0].getsockname()[1]}/up/")
        try:
            yield pool, heads, writers
        finally:
            await pool.close()
            if handlers:
                await asyncio.wait(handlers, timeout=5)


async def _asked(pool, *, timeout_s=5.0, size=10):
    reply = await pool.post("/x", b"." * size, headers={"X-Id": "é"}, timeout_s=timeout_s)
    try:
        return reply.status, await reply.whole()
    finally:
        reply.close()


def _play(*replies, calls=1, **options):
    """(answers, heads, number of connections); raises what a call raises."""

    async def play():
        async with _served(*replies) as (pool, heads, writers):
            try:
                answers = [await _asked(pool, **options) for _ in range(calls)]
            except Exception as error:
                return error
            return answers, heads, len(writers)

    outcome = asyncio.run(play())
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_what_is_sent():
    _, (head,), _ = _play(OK)
    lines = head.split("\r\n")
    assert lines[0] == "POST /up/x HTTP/1.1"
    assert "Authorization: Basic YTpiIGM=" in lines
    assert "X-Id: é" in lines
    with pytest.raises(ValueError, match="no headers"):
        asyncio.run(HttpPool("http://h").post("/", b"", headers={"a": "b\r\nc: d"}, timeout_s=1e9))


@cases("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_is_used_again_on_either_loop(new_loop):
    async def play():
        async with _served(OK, OK, OK) as (pool, _, writers):
            answers = [await _asked(pool, size=1_000_000) for _ in range(3)]
            return answers, len(writers)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(play()) == ([(200, b"hi")] * 3, 1)


@cases(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        OK + OK,
    ],
    ids=["says close", "http 1.0", "replies twice"],
)
def test_a_connection_is_not_used_again(reply):
    answers, _, connections = _play(reply, OK, calls=2)
    assert answers == [(200, b"hi")] * 2
    assert connections == 2


def test_a_reply_in_chunks_behind_an_announcement():
    chunks = b"1\r\nh\r\n1;x=y\r\ni\r\n0\r\nTrailer: t\r\n\r\n"
    reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    answers, _, connections = _play(b"HTTP/1.1 102 Processing\r\n\r\n" + reply, OK, calls=2)
    assert answers == [(200, b"hi")] * 2
    assert connections == 1


def test_a_reply_without_a_length_ends_with_its_connection():
    answers, _, _ = _play(b"HTTP/1.1 200 OK\r\n\r\nhi")
    assert answers == [(200, b"hi")]


@cases(
    "reply, error, why",
    [
        (None, ServerDisconnectedError, "before its reply was complete"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", ServerDisconnectedError, "complete"),
        (b"SSH-2.0-OpenSSH\r\n", BadReply, "HttpParser"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", BadReply, "HttpParser"),
        (b"HTTP/1.1 101 S\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", BadReply, "Upgrade"),
    ],
    ids=["none", "cut short", "no http", "long headers", "an upgrade"],
)
def test_a_bad_reply_is_an_error(reply, error, why):
    with pytest.raises(error, match=why):
        _play(reply)


def test_what_arrived_is_given_out_before_the_error():
    async def play():
        async with _served(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi") as (pool, _, _):
            reply = await pool.post("/x", b"", headers={}, timeout_s=5)
            pieces = [await reply.piece()]
            with pytest.raises(ServerDisconnectedError):
                await reply.piece()
            reply.close()
            return pieces

    assert asyncio.run(play()) == [b"hi"]


def test_a_server_waits_for_a_reader_that_is_slow():
    size = 1 << 24

    async def play():
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
        async with _served(head + bytes(size), OK) as (pool, _, writers):
            reply = await pool.post("/x", b"", headers={}, timeout_s=30)
            for _ in range(20):
                await asyncio.sleep(0)
            waiting = writers[0].transport.get_write_buffer_size()
            received = len(await reply.whole())
            reply.close()
            return waiting, received, await _asked(pool), len(writers)

    waiting, received, again, connections = asyncio.run(play())
    assert waiting > 0
    assert (received, again, connections) == (size, (200, b"hi"), 1)


def test_the_deadline_is_for_the_whole_reply():
    with pytest.raises(TimeoutError):
        _play(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", OK, timeout_s=0.2)


@cases("url", ["127.0.0.1:1", "ftp://h", "http://"])
def test_a_url_is_one_of_a_server(url):
    with pytest.raises(ValueError, match="no URL"):
        HttpPool(url)
