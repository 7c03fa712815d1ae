"""HttpEngine against servers that answer well, in vLLM's way, and badly."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from agentgym_rl.asgi import read_body, reply, serving
from agentgym_rl.engine import SamplingParams
from agentgym_rl.engines.client import HttpEngine
from agentgym_rl.errors import ContextLengthError, EngineError, WeightsError


def _choice(ids, finish=None, versions=None, **more):
    content = [{"token_id": t, "logprob": -0.5, "rank": 1, "top_logprobs": []} for t in ids]
    spans = [{"version": v, "start": a, "end": b} for v, a, b in versions] if versions else None
    return {
        "index": 0,
        "token_ids": ids,
        "logprobs": {"content": content},
        "finish_reason": finish,
        "weight_versions": spans,
        **more,
    }


def _body(*choices):
    return json.dumps({"request_id": "a", "choices": list(choices), "prompt_logprobs": None})


def _events(*bodies):
    return "".join(f"data: {body}\n\n" for body in bodies)


@asynccontextmanager
async def _answering(*answers, **options):
    """A client of a server that gives (status, body) `answers` in turn, the last for ever."""
    seen = []
    left = list(answers)

    async def app(scope, receive, send):
        body = await read_body(receive, limit_bytes=10**6)
        seen.append((scope["method"], scope["path"], json.loads(body) if body else None))
        status, text = left.pop(0) if len(left) > 1 else left[0]
        await reply(send, status, text.encode())

    async with serving(app, host="127.0.0.1", port=0) as url:
        client = HttpEngine(url, **{"timeout_s": 5.0, **options})
        try:
            yield client, seen
        finally:
            await client.close()


def _generate(*answers, stream=False, sampling=None, **options):
    """(deltas, requests seen) of one call; raises what the call raises."""

    async def play():
        async with _answering(*answers, **options) as (client, seen):
            params = sampling or SamplingParams(max_tokens=4)
            call = client.generate([1, 2], params, request_id="a", session_id="s", stream=stream)
            try:
                return [delta async for delta in call], seen
            except Exception as error:  # out of the server's task group, which would wrap it
                return error

    outcome = asyncio.run(play())
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_the_request_on_the_wire():
    sampling = SamplingParams(max_tokens=4, temperature=0.7, top_k=5, seed=3, stop=("x",))
    answer = _body(_choice([9], "stop", [("0.4", 0, 1)], decode_times=[1.5], stop_reason="x"))
    (delta,), seen = _generate((200, answer), sampling=sampling)
    params = {"max_tokens": 4, "temperature": 0.7, "top_p": 1.0, "top_k": 5, "seed": 3}
    params |= {"stop": ["x"], "logprobs": 0}
    body = {"token_ids": [1, 2], "sampling_params": params, "request_id": "a"}
    assert seen == [("POST", "/inference/v1/generate", body)]
    assert (delta.token_ids, delta.logprobs, delta.versions) == ([9], [-0.5], [4])
    assert (delta.times_s, delta.finish_reason, delta.stop_reason) == ([1.5], "stop", "x")


def test_no_request_is_salted_with_a_version():
    """Versions move without this client: a salt it remembered would name an old one."""
    models = '{"data": [{"id": "m", "max_model_len": 9}]}'
    served = '{"weight_version": "0.3"}'
    version = '{"version": "1", "tokenizer_hash": "h"}'

    async def play():
        answers = [models, served, version, *["{}"] * 4, _body(_choice([9], *GOOD))]
        async with _answering(*[(200, answer) for answer in answers]) as (client, seen):
            await client.info()
            await client.update_weights("/v4", version=4)
            await _one(client)
            return seen[-1][2]

    assert "cache_salt" not in asyncio.run(play())


def test_vllm_streams_spans_on_the_last_chunk_only():
    chunks = [
        _body(_choice([1, 2])),
        _body(_choice([3])),
        _body(_choice([4], "length", [("0.1", 0, 2), ("0.2", 2, 4)])),
    ]
    deltas, _ = _generate((200, _events(*chunks, "[DONE]")), stream=True)
    assert [d.token_ids for d in deltas] == [[1, 2, 3, 4]]
    assert deltas[0].versions == [1, 1, 2, 2]
    assert len(deltas[0].times_s) == 4
    assert deltas[0].finish_reason == "length"


def test_chunks_with_spans_come_at_once():
    chunks = [
        _body(_choice([1, 2], None, [("0.1", 0, 2)])),
        _body(_choice([3], None, [("0.2", 2, 3)])),
        _body(_choice([], "stop", [("0.1", 0, 2), ("0.2", 2, 3)])),
    ]
    deltas, _ = _generate((200, _events(*chunks, "[DONE]")), stream=True)
    assert [(d.token_ids, d.versions) for d in deltas] == [([1, 2], [1, 1]), ([3], [2]), ([], [])]


GOOD = ("stop", [("0.0", 0, 1)])


@pytest.mark.parametrize(
    ("answer", "stream", "words"),
    [
        ((200, _events(_body(_choice([1], None, GOOD[1])), "[DONE]")), True, "finish_reason"),
        ((200, ""), True, "without a finish_reason"),
        ((200, _events('{"error": {"message": "boom"}}', "[DONE]")), True, "boom"),
        ((200, _events("{oops")), True, "malformed"),
        ((200, "not json"), False, "malformed"),
        ((200, _body()), False, "one choice"),
        ((200, _body(_choice([1], None, GOOD[1]))), False, "no finish_reason"),
        ((200, _body(_choice([1], "stop"))), False, "weight_versions cover 0"),
        ((200, _body(_choice([1, 2], *GOOD))), False, "weight_versions cover 1"),
        ((200, _body(_choice([1], "stop", [("default", 0, 1)]))), False, "default"),
        ((200, _body(_choice([1], *GOOD) | {"logprobs": None})), False, "0 logprobs"),
        ((200, _body(_choice([1], *GOOD, decode_times=[1.0, 2.0]))), False, "2 decode_times"),
        ((200, _body(_choice([1], "eos", GOOD[1]))), False, "unknown finish_reason"),
        ((500, '{"error": {"message": "the engine broke"}}'), False, "HTTP 500: the engine broke"),
        ((502, "<html>bad gateway"), False, "HTTP 502: <html>bad"),
        ((400, '{"error": {"message": "top_p"}}'), False, "HTTP 400: top_p"),
    ],
)
def test_failures_are_engine_errors_that_name_the_url(answer, stream, words):
    with pytest.raises(EngineError, match=rf"http://127\.0\.0\.1.*{words}"):
        _generate(answer, stream=stream)


@pytest.mark.parametrize("code", ["400", '"context_length_exceeded"'])
def test_a_full_context_has_its_own_error(code):
    text = f'{{"error": {{"message": "maximum context length is 9", "code": {code}}}}}'
    with pytest.raises(ContextLengthError, match="maximum context length is 9"):
        _generate((400, text))


def test_a_refused_file_is_a_weights_error():
    async def play():
        refused = '{"error": {"message": "v3 is truncated", "type": "WeightsError"}}'
        async with _answering((200, "{}"), (200, "{}"), (400, refused)) as (client, seen):
            with pytest.raises(WeightsError, match="v3 is truncated"):
                await client.update_weights("/v3", version=3)
            return seen

    paths = [path for _, path, _ in asyncio.run(play())]
    assert paths == ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights"]


def test_an_update_is_four_calls_the_first_time_and_three_later():
    async def play():
        async with _answering((200, "{}"), incarnation=2) as (client, seen):
            await client.update_weights("/v3", version=3)
            await client.update_weights("/v4", version=4)
            return seen

    seen = asyncio.run(play())
    assert [path for _, path, _ in seen[4:]] == [
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
    ]
    assert seen[2][2] == {"update_info": {"path": "/v3"}}
    assert seen[3][2] == {"weight_version": "2.3"}


@asynccontextmanager
async def _listening(handle):
    """URL of a raw TCP server, for what a well-behaved HTTP server would never do."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _read_request(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))


async def _one(client):
    call = client.generate([1], SamplingParams(max_tokens=1), request_id="a", session_id="s")
    return [delta async for delta in call]


def test_a_connection_that_died_in_the_pool_costs_one_retry():
    body = _body(_choice([1], *GOOD)).encode()
    connections = []

    async def handle(reader, writer):
        connections.append(writer)
        await _read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
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


@pytest.mark.parametrize("stream", [False, True])
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
                with pytest.raises(EngineError, match="no complete reply within"):
                    await anext(call)
                async with asyncio.timeout(5):
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
