"""The way to an engine: connections that die, silence, nobody there."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from agentgym_rl.core import EngineError, SamplingParams
from agentgym_rl.engines import HttpEngine
from tests.kit.cases import cases

CHOICE = {
    "token_ids": [1],
    "logprobs": {"content": [{"token_id": 1, "logprob": -0.5}]},
    "finish_reason": "stop",
    "weight_versions": [{"version": "0.0", "start": 0, "end": 1}],
}
BODY = json.dumps({"request_id": "a", "choices": [CHOICE]}).encode()


@asynccontextmanager
async def _listening(handle):
    """URL of a raw TCP server, for what a well-behaved HTTP server would never do."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _read_request(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))


async def _one(client, *, stream=False):
    call = client.generate(
        [1], SamplingParams(max_tokens=1), request_id="a", session_id="s", stream=stream
    )
    return [delta async for delta in call]


def test_a_connection_that_died_in_the_pool_costs_one_retry():
    connections = []

    async def handle(reader, writer):
        connections.append(writer)
        await _read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        await writer.drain()
        if len(connections) == 1:
            await _read_request(reader)  # taken, never answered
        writer.close()

    async def play():
        async with _listening(handle) as url:
            client = HttpEngine(url, timeout_s=5)
            try:
                return await _one(client), await _one(client)
            finally:
                await client.close()

    first, second = asyncio.run(play())
    assert first[0].token_ids == second[0].token_ids == [1]
    assert len(connections) == 2


@cases("ends", [True, False], ids=["ends", "goes on"])
def test_a_streams_connection_is_used_again_once_it_has_ended(ends):
    """As vLLM does: the last token is in an event of its own, `[DONE]` comes after it. A stream
    that never ends is left, and its connection with it."""
    connections = []

    async def handle(reader, writer):
        connections.append(writer)
        while True:
            await _read_request(reader)
            event = b"data: " + BODY + b"\n\n"
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n" % len(event) + event + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n")
            if ends:
                writer.write(b"0\r\n\r\n")
            await writer.drain()

    async def play():
        async with _listening(handle) as url:
            client = HttpEngine(url, timeout_s=5)
            try:
                return [await _one(client, stream=True) for _ in range(3)]
            finally:
                await client.close()
                for writer in connections:
                    writer.close()

    replies = asyncio.run(play())
    assert [reply[-1].token_ids for reply in replies] == [[1]] * 3
    assert len(connections) == (1 if ends else 3)


def test_a_fresh_connection_that_dies_is_not_tried_again():
    connections = []

    async def handle(reader, writer):
        connections.append(writer)
        await _read_request(reader)
        writer.close()

    async def play():
        async with _listening(handle) as url:
            client = HttpEngine(url, timeout_s=5)
            try:
                with pytest.raises(EngineError, match="ServerDisconnectedError"):
                    await _one(client)
            finally:
                await client.close()

    asyncio.run(play())
    assert len(connections) == 1


@cases("stream", [False, True])
def test_silence_ends_at_the_deadline(stream):
    closed = asyncio.Event()

    async def handle(reader, writer):
        await _read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert await reader.read() == b""  # the client hung up
        writer.close()
        closed.set()

    async def play():
        async with _listening(handle) as url:
            client = HttpEngine(url, timeout_s=0.2)
            params = SamplingParams(max_tokens=1)
            call = client.generate([1], params, request_id="a", session_id="s", stream=stream)
            try:
                with pytest.raises(
                    EngineError,
                    match=r"a reply took more than .*such as --engine.request_timeout_s=",
                ):
                    await anext(call)
                async with asyncio.timeout(60):
                    await closed.wait()
            finally:
                await client.close()

    asyncio.run(play())


def test_nobody_listening_is_an_engine_error():
    async def play():
        client = HttpEngine("http://127.0.0.1:9", timeout_s=5)
        try:
            with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
                await client.info()
        finally:
            await client.close()

    asyncio.run(play())
