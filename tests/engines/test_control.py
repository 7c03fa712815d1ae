"""Pauses, weight updates and names over HTTP, against vLLM's control routes."""

import asyncio

import pytest
from arl_vllm.client import VllmEngine

from agentgym_rl.core import (
    PAUSE_PATHS,
    UNKNOWN_VERSION,
    EngineError,
    RequestRefused,
    SamplingParams,
    WeightsError,
)
from tests.kit.cases import cases
from tests.kit.fake_servers import VllmServer

SWAP = [PAUSE_PATHS["recompute"], "/finish_weight_update", "/resume"]
STAGE = ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights"]
LOOK = "/collective_rpc"


def _play(server, scenario, **options):
    """The scenario's value; raises what it raises."""

    async def play():
        async with asyncio.timeout(60), server.running() as url:
            client = VllmEngine(url, **{"control_timeout_s": 5, **options})
            try:
                return await scenario(client)
            finally:
                await client.close()

    return asyncio.run(play())


def _update(server, **options):
    _play(server, lambda client: client.update_weights("/v3", version=3), **options)


def test_an_update_stages_while_it_samples_and_pauses_for_the_swap():
    server = VllmServer()
    _update(server, incarnation=2)
    assert server.seen == [*STAGE, *SWAP]
    assert (server.label, server.paused) == ("2.3", False)


def test_a_server_that_started_anew_is_initialized_again():
    server = VllmServer()
    _update(server)
    _update(server)
    assert server.seen == 2 * [*STAGE, *SWAP]


def test_staging_is_waited_for_until_every_worker_is_ready():
    server = VllmServer(staging=[["staging", "staging"], ["ready", "staging"], ["ready", "ready"]])
    _update(server, polls_staging=True)
    assert server.seen == [*STAGE, LOOK, LOOK, LOOK, *SWAP]


@cases(
    "worker, words",
    [
        ({"state": "failed", "error": "v3 is truncated"}, "staging /v3: v3 is truncated"),
        ({"state": "ready", "path": "/v9"}, "/v9 is being staged, another update than /v3"),
    ],
)
def test_weights_that_cannot_be_staged_pause_nobody(worker, words):
    server = VllmServer(staging=[["staging"], ["ready", worker]])
    with pytest.raises(WeightsError, match=words):
        _update(server, polls_staging=True)
    assert server.seen == [*STAGE, LOOK, LOOK]


def test_staging_has_a_deadline():
    server = VllmServer(staging=[["ready", "staging"]])
    words = r"not staged within 0\.3 s; the workers say \['ready', 'staging'\]"
    with pytest.raises(WeightsError, match=words):
        _update(server, polls_staging=True, control_timeout_s=0.3)


def test_an_update_that_somebody_left_open_is_dropped():
    server = VllmServer(staging=[["ready"]])
    server.updating = True
    _update(server, polls_staging=True)
    init, start, update = STAGE
    assert server.seen == [init, start, update, start, update, LOOK, *SWAP]
    assert server.label == "0.3"


@cases("broken", ["/finish_weight_update", "/update_weights"])
def test_a_step_that_fails_keeps_its_reason_and_leaves_nobody_paused(broken):
    server = VllmServer(broken=[broken])
    with pytest.raises(EngineError, match=f"{broken}: HTTP 500: .* {broken} broke"):
        _update(server)
    assert not server.paused
    assert server.label == "default"


def test_a_resume_that_fails_too_is_told():
    server = VllmServer(broken=["/finish_weight_update", "/resume"])
    with pytest.raises(EngineError) as caught:
        _update(server)
    assert "/resume broke" in caught.value.__notes__[0]


def test_an_update_that_is_cancelled_leaves_nobody_paused():
    server = VllmServer(slow=["/finish_weight_update"])

    async def scenario(client):
        update = asyncio.create_task(client.update_weights("/v3", version=3))
        while "/finish_weight_update" not in server.seen:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update

    _play(server, scenario)
    assert server.seen[-2:] == ["/finish_weight_update", "/resume"]
    assert not server.paused


def test_a_fresh_server_serves_an_unknown_version_until_it_is_named():
    async def scenario(client):
        before = await client.info()
        await client.name_version(0)
        return before, await client.info()

    before, after = _play(VllmServer(), scenario)
    assert (before.model, before.max_model_len, before.tokenizer_hash) == ("policy", 64, "")
    assert (before.version, after.version) == (UNKNOWN_VERSION, 0)


def test_a_server_without_versions_is_not_asked_for_them():
    async def scenario(client):
        await client.name_version(0)
        return await client.info()

    server = VllmServer()
    assert _play(server, scenario, has_spans=False).version == UNKNOWN_VERSION
    assert server.seen == ["/v1/models", "/version"]


def test_a_label_of_somebody_else_is_an_error():
    server = VllmServer()
    server.label = "step-twelve"
    with pytest.raises(EngineError, match=r"/weight_info: .*step-twelve"):
        _play(server, lambda client: client.info())


@cases("interrupt", PAUSE_PATHS)
def test_each_interrupt_has_its_pause(interrupt):
    server = VllmServer()
    _play(server, lambda client: client.pause(interrupt=interrupt))
    assert server.seen == [PAUSE_PATHS[interrupt]]


def test_a_bare_text_is_the_reason_of_a_failed_pause():
    server = VllmServer(broken=["/pause"])
    with pytest.raises(EngineError, match=r"/pause.*: HTTP 500: Failed to pause: /pause broke"):
        _play(server, lambda client: client.pause(interrupt="abort"))


def test_a_server_without_the_routes_refuses():
    server = VllmServer(has_dev_routes=False)
    with pytest.raises(RequestRefused, match="HTTP 404: Not Found"):
        _play(server, lambda client: client.resume())
    with pytest.raises(WeightsError, match="HTTP 404: Not Found"):
        _update(server)


async def _sampled(client, name="a", stream=False):
    params = SamplingParams(max_tokens=1)
    call = client.generate([5], params, request_id=name, session_id=name, stream=stream)
    return [token async for delta in call for token in delta.token_ids]


@cases("stream", [False, True])
def test_a_refusal_during_a_pause_is_waited_out_by_all_requests_together(stream):
    server = VllmServer(refuses_s=60)
    server.label, server.paused = "0.4", True

    async def scenario(client):
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(_sampled(client, f"r{n}", stream)) for n in range(20)]
            count = server.seen.count
            while count("/inference/v1/generate") < 20 or count("/is_paused") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            server.paused = False
        return [job.result() for job in jobs]

    assert _play(server, scenario) == [[9]] * 20
    asked = server.seen.count("/is_paused")
    assert server.seen.count("/inference/v1/generate") == 40
    assert 2 <= asked < 40  # one asks for all


def test_a_pause_that_never_ends_is_an_engine_error_in_time():
    server = VllmServer(refuses_s=60)
    server.label, server.paused = "0.4", True

    async def scenario(client):
        with pytest.raises(EngineError, match=r"paused.*resume took more than 0\.3 s"):
            await _sampled(client)

    _play(server, scenario, timeout_s=0.3)


def test_a_refusal_by_a_server_that_never_lets_in_ends_in_time():
    """It says that it runs, and refuses: no endless round of requests."""
    server = VllmServer(refuses_s=0.0)
    server.label = "0.4"

    async def scenario(client):
        with pytest.raises(EngineError, match="paused"):
            await _sampled(client)

    server.always_refuses = True
    _play(server, scenario, timeout_s=0.3)
    assert server.seen.count("/inference/v1/generate") < 30


def test_a_server_that_cannot_say_whether_it_is_paused_has_failed():
    server = VllmServer(refuses_s=60, broken=["/is_paused"])
    server.label, server.paused = "0.4", True
    with pytest.raises(EngineError, match="/is_paused broke"):
        _play(server, _sampled)
