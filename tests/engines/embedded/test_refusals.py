"""Requests that are wrong: a 4xx that says what, and an engine that serves on."""

import asyncio
import io

from agentgym_rl.engines import protocol

PROMPT = [5, 6, 7]


def _run(served, folder, scenario):
    async def play():
        async with asyncio.timeout(60), served(folder) as (client, engine):
            return await scenario(client, engine)

    return asyncio.run(play())


PARAMETERS = [
    ({"temperatur": 1.0}, "temperatur"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e-9}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 5}, "logprobs"),
    ({"stop": [""]}, "stop"),
    ({"stop_token_ids": [640]}, "stop_token_ids"),
    ({"seed": "x"}, "seed"),
]


def test_a_wrong_parameter_is_named(model_dir, served, call, subtests):
    async def scenario(client, _):
        for params, named in PARAMETERS:
            with subtests.test(str(params)):
                body = {"token_ids": PROMPT, "sampling_params": params}
                status, reply = await call(client.url + protocol.GENERATE, "POST", body)
                assert status == 400
                assert named in reply["error"]["message"]

    _run(served, model_dir("qwen3"), scenario)


BODIES = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe\x00",
    b"null",
    b"[" * 100_000,
    b'{"token_ids": []}',
    b'{"token_ids": [1.5]}',
    b'{"token_ids": [-1]}',
    b'{"token_ids": [640]}',
    b'{"token_ids": [99999999999999999999999999]}',
    b'{"token_ids": "123"}',
    b'{"token_ids": [true]}',
    b'{"token_ids": [5], "features": {}}',
    b'{"token_ids": [5], "sampling_params": []}',
]


def test_a_hostile_body_is_a_400_and_harms_nobody(model_dir, served, call, subtests):
    async def scenario(client, _):
        url = client.url + protocol.GENERATE
        for body in BODIES:
            with subtests.test(str(body[:60])):
                status, reply = await call(url, "POST", body)
                good = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 8}}
                assert (await call(url, "POST", good))[0] == 200
                assert status == 400
                assert reply["error"]["message"]

    _run(served, model_dir("qwen3"), scenario)


def test_other_wrong_requests(model_dir, served, call):
    async def scenario(client, engine):
        url = client.url
        huge = io.BytesIO(b'{"token_ids": [' + b"5," * 9_000_000 + b"5]}")
        assert (await call(url + protocol.GENERATE, "POST", huge))[0] == 413
        assert (await call(url + "/nothing"))[0] == 404
        assert (await call(url + protocol.GENERATE))[0] == 405
        for query in ("?mode=", "?mode=stop", "?mode=keep&clear_cache=maybe"):
            status, reply = await call(url + "/pause" + query, "POST")
            assert (status, reply["error"]["param"] in ("mode", "clear_cache")) == (400, True)
        assert not engine.loop.paused
        bad = {"weight_version": ""}
        assert (await call(url + "/finish_weight_update", "POST", bad))[0] == 400
        bad = {"new_version": ""}
        assert (await call(url + "/update_weight_version", "POST", bad))[0] == 400

    _run(served, model_dir("qwen3"), scenario)
