"""HTTP clients and servers that send too much, too slowly, or packed: each has a bound."""

import asyncio
import tracemalloc
import zlib
from contextlib import asynccontextmanager, suppress

import openai
import pytest

from agentgym_rl.engines.client.http import HttpPool
from agentgym_rl.runtime import (
    MAX_ANSWER_BYTES,
    AnswerTooLarge,
    HttpClient,
    bound_response,
    read_json,
)
from agentgym_rl.runtime.http_client import call
from tests.kit.cases import cases

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EVENTS = HEAD + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


def packed(data: bytes, name: str = "gzip", *, wbits: int = 31) -> bytes:
    body = zlib.compressobj(wbits=wbits)
    body = body.compress(data) + body.flush()
    return HEAD + f"Content-Encoding: {name}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(first: bytes, again: bytes = b"", *, pause_s: float = 0.0):
    """The URL of a server that writes `first`, and then `again` for ever."""

    handlers = []

    async def handle(reader, writer):
        handlers.append(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            await writer.drain()
            while again:
                writer.write(again)
                await writer.drain()
                await asyncio.sleep(pause_s)
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20)
    async with asyncio.timeout(60), server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            for task in handlers:
                task.cancel()
            if handlers:
                await asyncio.wait(handlers)


async def pooled(url: str, **limits):
    async with HttpClient() as http:
        return await http.call(url, "GET", "/x", **limits)


async def synchronous(url: str, **limits):
    return await asyncio.to_thread(call, url, "GET", "/x", **limits)


def asked(client, first, again=b"", *, pause_s=0.0, timeout_s=30.0, max_bytes=100_000):
    async def play():
        async with serving(first, again, pause_s=pause_s) as url:
            return await client(url, timeout_s=timeout_s, max_bytes=max_bytes)

    return asyncio.run(play())


BOTH = cases("client", [pooled, synchronous])


@BOTH
def test_an_announced_length_is_not_read(client):
    with pytest.raises(
        AnswerTooLarge, match="at most 100,000 bytes are read, it has 1,500,000,000"
    ):
        asked(client, HEAD + b"Content-Length: 1500000000\r\n\r\n", b"x" * 65_536)


@BOTH
def test_an_endless_answer_ends_at_its_bound(client):
    tracemalloc.start()
    try:
        with pytest.raises(AnswerTooLarge, match="at most 8,000,000 bytes are read, it goes on"):
            asked(client, CHUNKED, CHUNK, max_bytes=8_000_000)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


@BOTH
def test_a_small_answer_that_unpacks_to_much_ends_at_its_bound(client):
    bomb = packed(bytes(100_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(AnswerTooLarge, match="it goes on"):
            asked(client, bomb, max_bytes=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@BOTH
def test_what_is_packed_without_being_asked_for_is_read(client):
    for name, wbits in (("gzip", 31), ("x-gzip", 31), ("deflate", 15), ("GZIP", 31)):
        assert asked(client, packed(b"hello", name, wbits=wbits)) == (200, b"hello")
    assert (
        asked(client, HEAD + b"Content-Encoding: identity\r\nContent-Length: 1\r\n\r\nx")[1] == b"x"
    )


@BOTH
def test_an_answer_of_the_bound_is_read(client):
    assert asked(client, HEAD + b"Content-Length: 9\r\n\r\n" + b"x" * 9, max_bytes=9)[1] == b"x" * 9
    assert asked(client, packed(b"x" * 9), max_bytes=9)[1] == b"x" * 9


@cases(
    "name, said",
    [("br", "packed as 'br'.*not asked for"), ("gzip, gzip", "packed as 'gzip, gzip'")],
)
@cases("client", [pooled, synchronous])
def test_another_packing_is_named(client, name, said):
    with pytest.raises(ConnectionError, match=said):
        asked(client, packed(b"hello", name))


@BOTH
def test_packed_answers_that_are_broken_are_named(client):
    whole = packed(b"hello" * 100)
    torn = whole.replace(b"Content-Length: ", b"X: ")[:-9]
    with pytest.raises(ConnectionError, match="packed, and ended too early"):
        asked(client, torn)
    with pytest.raises(ConnectionError, match="cannot be unpacked"):
        asked(client, HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello")
    with pytest.raises(ConnectionError, match="goes on after the end"):
        asked(client, whole.replace(b"Content-Length: ", b"X: "), whole[-20:] * 10_000)


@BOTH
def test_a_packing_that_holds_nothing_is_bounded_and_has_to_end(client):
    begun = HEAD + b"Content-Encoding: gzip\r\n\r\n" + packed(b"")[-20:][:10]
    with pytest.raises(AnswerTooLarge, match="it goes on"):
        asked(client, begun, b"\0\0\0\xff\xff" * 10_000)
    with pytest.raises(ConnectionError, match="packed, and ended too early"):
        asked(client, begun)


DRIPS = [
    (HEAD + b"Content-Length: 9999\r\n\r\n", b"x"),
    (HEAD, b"X: y\r\n"),
    (b"", b"H"),
    (CHUNKED, b"1\r\nx\r\n"),
]


@cases("first, again", DRIPS, ids=["body", "headers", "status", "chunks"])
@cases("client", [pooled, synchronous])
@pytest.mark.slow
def test_an_answer_that_drips_ends_at_its_deadline(client, first, again):
    with pytest.raises((TimeoutError, ConnectionError)):
        asked(client, first, again, pause_s=0.05, timeout_s=0.4)


@cases(
    "again",
    [b"X: " + b"y" * 1000 + b"\r\n", b"y" * 65_536, b"HTTP/1.1 100 C\r\n\r\n"],
    ids=range(3),
)
@cases("client", [pooled, synchronous])
def test_endless_headers_end(client, again):
    tracemalloc.start()
    try:
        with pytest.raises((TimeoutError, ConnectionError)):
            asked(client, HEAD, again, timeout_s=2.0)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def sdk(first, again=b"", *, stream=False):
    """The error of the OpenAI SDK with bounded responses."""

    async def play():
        async with serving(first, again) as url:
            http = openai.DefaultAioHttpClient(event_hooks={"response": [bound_response]})
            client = openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=http)
            async with client:
                made = client.chat.completions.with_streaming_response.create(
                    model="m", messages=[], stream=stream
                )
                async with made as response:
                    return [line async for line in response.iter_lines()]

    return asyncio.run(play())


def test_an_sdk_reads_no_more_either():
    for first, again in ((packed(bytes(50_000_000)), b""), (CHUNKED, CHUNK)):
        with pytest.raises(AnswerTooLarge, match=f"at most {MAX_ANSWER_BYTES:,} bytes"):
            sdk(first, again)
    assert sdk(packed(b"one\ntwo")) == ["one", "two"]


def test_a_stream_and_each_of_its_events_is_bounded(monkeypatch):
    monkeypatch.setattr("agentgym_rl.runtime.http_client.MAX_STREAM_BYTES", 4_000_000)
    monkeypatch.setattr("agentgym_rl.runtime.http_client.MAX_ANSWER_BYTES", 2_000_000)
    with pytest.raises(AnswerTooLarge, match="at most 2,000,000 bytes are read, it goes on"):
        sdk(EVENTS, CHUNK, stream=True)
    with pytest.raises(AnswerTooLarge, match="at most 4,000,000 bytes are read, it goes on"):
        sdk(EVENTS, CHUNK[:-4] + b"\n\n\r\n", stream=True)


def test_a_reply_of_an_engine_is_bounded():
    async def play():
        async with serving(CHUNKED, CHUNK) as url:
            pool = HttpPool(url)
            reply = await pool.post("/x", b"", headers={}, timeout_s=30, max_bytes=1_000_000)
            try:
                return await reply.whole()
            finally:
                reply.close()
                await pool.close()

    with pytest.raises(AnswerTooLarge, match="at most 1,000,000 bytes are read, it goes on"):
        asyncio.run(play())


@cases("text", ["[" * 200_000, "[" * 102 + "]" * 102, "{", '"', b"\xff", "1" * 5000], ids=range(6))
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        read_json(text)
    assert read_json("[" * 100 + "1" + "]" * 100)
    assert read_json('{"a": [1, "b", {"c": null}]}') == {"a": [1, "b", {"c": None}]}
