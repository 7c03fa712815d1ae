"""Clients that misbehave, on real sockets: bytes that are no HTTP, bodies that are no request,
and readers that are slow or gone. The gateway answers 4xx or hangs up; it never fails or waits."""

import asyncio
import contextlib
import json
import logging
import os

import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.runtime import http_server

BODY = {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/completions", "/v1/messages/count_tokens")
EVERY = 1 if "ARL_FUZZ_EXAMPLES" in os.environ else 17
"""A hang-up for so many bytes of a stream."""
CLOSE = "connection: close"
HEAD = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n"
DEEP = "[" * 50_000 + "]" * 50_000
NO_GRACE = GatewayConfig(disconnect_grace_s=0.0, max_session_requests=4000)


class Wire:
    """Bytes to a served gateway, and all that comes back."""

    def __init__(self, url, key):
        host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        self._address = (host, int(port))
        self._key = key

    @contextlib.asynccontextmanager
    async def open(self):
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*self._address)
            try:
                yield reader, writer
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    def head(self, path, length, *more):
        lines = [f"POST {path} HTTP/1.1", "host: x", f"x-api-key: {self._key}", *more]
        return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()

    def request(self, path, body, *more):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.head(path, len(data), *more) + data

    async def say(self, data, *, half_close=False):
        """Send, and read until the gateway hangs up."""
        async with self.open() as (reader, writer):
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
                if half_close:
                    writer.write_eof()
            with contextlib.suppress(ConnectionError):
                return await reader.read()
            return b""


def _status(answer):
    return int(answer.split(b" ", 2)[1])


def _play(scene, use, session=None):
    session = session or scene.open()

    async def main():
        async with scene.gateway.serve() as url:
            return await use(Wire(url, session.key))

    return session, asyncio.run(main())


def _talkative(stage, spell, words, **options):
    return stage(lambda _: spell.bytewise("Hello wörld. " + words.CALL + words.END), **options)


def _json(**fields):
    return json.dumps({**BODY, **fields}).encode()


def _hostile_bodies():
    said = {"role": "user", "content": "x"}
    function = {"name": "f", "arguments": DEEP}
    call = {"id": "c", "type": "function", "function": function}
    called = [said, {"role": "assistant", "tool_calls": [call]}, said]
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "@"}}
    used = [said, {"role": "assistant", "content": [use]}, said]
    nested = b"[" * 900 + b"]" * 900
    chat_tool = {"type": "function", "function": {"name": "f", "parameters": {"a": "@"}}}
    return {
        "empty": b"",
        "no-json": b"{",
        "invalid-utf8": _json(messages=[{**said, "content": "@"}]).replace(b"@", b"\xff"),
        "invalid-utf8-in-input": _json(messages=used).replace(b"@", b"\xff"),
        "lone-surrogate": _json(messages=[{**said, "content": "\ud800"}]),
        "lone-surrogate-in-input": _json(messages=used).replace(b"@", b"\\udc00"),
        "nan": _json(temperature=float("nan")),
        "infinity": _json(max_tokens=float("inf")),
        "overflow": _json(temperature=-1.5).replace(b"-1.5", b"1e999"),
        "huge-int": _json(max_tokens=10**300, seed=10**300, n=10**300, top_k=10**300),
        "huge-seed": _json(seed=2**64, prompt="x"),
        "huge-top-k": _json(top_k=2**64, prompt="x"),
        "huger-int": _json(n=-1).replace(b"-1", b"1" * 5000),
        "huge-prompt-id": _json(prompt=[10**300]),
        "deep": DEEP.encode(),
        "deep-field": _json(messages="@").replace(b'"@"', DEEP.encode()),
        "deep-tools": _json(tools=[chat_tool]).replace(b'"@"', nested),
        "deep-schema": _json(tools=[{"name": "f", "input_schema": "@"}]).replace(
            b'"@"', b'{"a": ' + nested + b"}"
        ),
        "deep-arguments": _json(messages=called),
        "deep-input": _json(messages=used).replace(b'"@"', DEEP.encode()),
        "less-deep-input": _json(messages=used).replace(b'"@"', nested),
        "keys-twice": b'{"model": "a", "model": 3, "max_tokens": 1, "max_tokens": "x"}',
        "an-array": b"[]",
        "a-number": b"1e5",
        "nul": _json(messages=[{**said, "content": "a\x00b"}]),
    }


def test_bodies(stage, spell, words, subtests):
    scene = _talkative(stage, spell, words)

    async def main():
        async with scene.gateway.serve() as url:
            for name, body in _hostile_bodies().items():
                session = scene.open()
                wire = Wire(url, session.key)
                with subtests.test(name):
                    statuses = [
                        _status(await wire.say(wire.request(path, body, CLOSE))) for path in PATHS
                    ]
                    assert all(status == 200 or 400 <= status < 500 for status in statuses), (
                        statuses
                    )
                    assert not session.infra_error

    asyncio.run(main())


NO_REQUESTS = [
    ("no-http", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("no-version", b"POST /v1/messages\r\n\r\n"),
    ("giant-header", b"POST / HTTP/1.1\r\nx: " + b"a" * 300_000 + b"\r\n\r\n"),
    ("giant-path", b"POST /" + b"a" * 300_000 + b" HTTP/1.1\r\n\r\n"),
    ("many-headers", b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 50_000 + b"\r\n"),
    ("two-lengths", HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\n"),
    ("bad-length", HEAD + b"content-length: -5\r\n\r\n"),
    ("bad-chunks", HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n"),
    ("bad-key", b"GET /v1/models HTTP/1.1\r\nauthorization: Bearer \xff\xfe\r\n\r\n"),
    ("bad-key-post", HEAD + b"x-api-key: \xff\r\ncontent-length: 0\r\n\r\n"),
    ("path-key", b"POST /s/%ed%a0%80%ff/v1/messages HTTP/1.1\r\ncontent-length: 0\r\n\r\n"),
    ("websocket", HEAD + b"connection: upgrade\r\nupgrade: websocket\r\n"
     b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"),
    ("nothing", b""),
]  # fmt: skip


def test_bytes_that_are_no_request(stage, caplog, subtests):
    scene = stage([])
    health = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"

    async def use(wire):
        for name, data in NO_REQUESTS:
            with subtests.test(name):
                answer = await wire.say(data, half_close=True)
                healthy = await wire.say(health)
                assert not answer or _status(answer) < 500, answer
                assert _status(healthy) == 200
                assert not caplog.records
            caplog.clear()

    with caplog.at_level(logging.ERROR):
        _play(scene, use)
    assert not caplog.records


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def test_headers_that_do_not_come_are_not_waited_for(stage, monkeypatch):
    monkeypatch.setattr(http_server, "_HEADERS_TIMEOUT_S", 0.3)
    monkeypatch.setattr(http_server, "_KEEP_ALIVE_S", 1)

    async def answers(wire, before, data):
        async with wire.open() as (reader, writer):
            writer.write(before)
            await asyncio.sleep(0.1)
            writer.write(data)
            return (await reader.read()).count(b"HTTP/1.1 200")

    async def use(wire):
        all_of_them = [(before, data) for before in (b"", HEALTH) for data in (b"", HEAD, b"\r\n")]
        async with asyncio.TaskGroup() as tasks:
            asked = {each: tasks.create_task(answers(wire, *each)) for each in all_of_them}
        return {each: task.result() for each, task in asked.items()}

    _, found = _play(stage([]), use)
    assert found == {(before, data): bool(before) for before, data in found}
    assert len(found) == 6


@pytest.mark.slow
def test_a_connection_outlives_the_wait_for_headers(stage, spell, words, monkeypatch):
    """Requests that take longer than their headers may, one after the other."""
    monkeypatch.setattr(http_server, "_HEADERS_TIMEOUT_S", 0.3)
    scene = stage(lambda _: words.Say(spell.canonical(words.ANSWER + words.END), delay_s=0.02))

    async def use(wire):
        async with wire.open() as (reader, writer):
            for part in (wire.request(PATHS[0], BODY), wire.request(PATHS[0], BODY, CLOSE)):
                writer.write(part[:-5])
                await asyncio.sleep(0.4)
                writer.write(part[-5:])
                await asyncio.sleep(0.6)
            return await reader.read()

    _, answer = _play(scene, use)
    assert answer.count(b"HTTP/1.1 200") == 2


def _streamed():
    tools = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
    yield PATHS[0], {**BODY, "tools": tools, "stream": True}
    yield PATHS[1], {**BODY, "tools": [{"name": "calculator", "input_schema": {}}], "stream": True}


@pytest.mark.slow
def test_a_client_that_hangs_up_after_any_number_of_bytes(stage, spell, words):
    """Of its own request (counted from the end), or of the stream; nobody else is harmed."""
    reply = spell.bytewise("Hé. " + words.CALL + words.END)
    scene = stage(lambda _: words.Say(reply, chunk=9, delay_s=0.001), config=NO_GRACE)

    async def cut(wire, request, at):
        async with wire.open() as (reader, writer):
            writer.write(request[: min(at, 0) or None])
            await writer.drain()
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await reader.readexactly(max(at, 0))

    async def use(wire):
        for path, body in _streamed():
            request = wire.request(path, body, CLOSE)
            ats = range(-120, len(await wire.say(request)) + 20, EVERY)
            for start in range(0, len(ats), 100):
                async with asyncio.TaskGroup() as tasks:
                    for at in ats[start : start + 100]:
                        tasks.create_task(cut(wire, request, at))
        assert _status(await wire.say(request)) == 200
        async with asyncio.timeout(60):
            while session.exchanges.num_open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    session = scene.open()
    _play(scene, use, session)
    ended = [entry.aborted or entry.finish_reason is not None for entry in scene.engine.journal]
    assert all(ended)
    assert len(ended) > 100
    record = scene.gateway.close_session(session)
    assert not record.infra_error
    assert record.counters["undelivered_turns"] > 0
    assert len(record.rows) == record.num_turns - record.counters["lost_replies"]


def test_a_reader_that_is_slow_gets_all_and_holds_up_nobody(stage, spell, words):
    scene = _talkative(stage, spell, words)

    async def slowly(wire, rest):
        async with wire.open() as (reader, writer):
            writer.write(wire.request(PATHS[1], {**BODY, "stream": True}, CLOSE))
            received = await reader.readexactly(64)
            await rest.wait()
            return received + await reader.read()

    async def use(wire):
        rest = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            slow = [tasks.create_task(slowly(wire, rest)) for _ in range(3)]
            for _ in range(5):
                assert _status(await wire.say(wire.request(PATHS[0], BODY, CLOSE))) == 200
            rest.set()
        return [task.result() for task in slow]

    _, received = _play(scene, use)
    assert all(answer.count(b"event: message_stop") == 1 for answer in received)


def test_a_request_that_trickles_in_and_several_in_one_write(stage, spell, words):
    scene = _talkative(stage, spell, words)

    async def use(wire):
        one = wire.request(PATHS[1], BODY)
        async with wire.open() as (reader, writer):
            for at in range(0, len(one), 7):
                writer.write(one[at : at + 7])
                await asyncio.sleep(0.001)
            trickled = await reader.readuntil(b'"output_tokens"')
        piped = await wire.say(one * 3 + wire.request(PATHS[1], BODY, CLOSE))
        return trickled, piped

    session, (trickled, piped) = _play(scene, use)
    assert _status(trickled) == 200
    assert piped.count(b"HTTP/1.1 200") == 4
    assert session.num_turns == 5


def test_a_body_that_never_comes_is_given_up(stage, monkeypatch):
    monkeypatch.setattr("agentgym_rl.gateway.request.body._READ_TIMEOUT_S", 0.1)
    scene = stage([])

    async def use(wire):
        async with wire.open() as (reader, writer):
            writer.write(wire.head(PATHS[1], 100) + b"{")
            return await reader.readuntil(b"}}")

    _, answer = _play(scene, use)
    assert _status(answer) == 408
    assert b"timeout_error" in answer


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS[:2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_nests_deeply_has_made_a_call_like_any_other(
    stage, spell, words, path, stream
):
    deep = "[" * 2_000 + "]" * 2_000
    text = f'<tool_call>\n{{"name": "f", "arguments": {{"a": {deep}}}}}\n</tool_call>' + words.END
    scene = stage([words.Say(spell.bytewise(text), chunk=500)], max_model_len=9_000)
    session = scene.open(max_tokens=6_000)
    tools = {PATHS[0]: {"type": "function", "function": {"name": "f"}}}
    tool = tools.get(path, {"name": "f", "input_schema": {}})
    body = {**BODY, "tools": [tool], "stream": stream, "max_tokens": 6_000}

    async def use(wire):
        return await wire.say(wire.request(path, body, CLOSE))

    _, answer = _play(scene, use, session)
    assert _status(answer) == 200
    record = scene.gateway.close_session(session)
    assert (record.infra_error, record.counters["tool_calls"]) == ("", 1)
