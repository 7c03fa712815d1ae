"""What every engine promises. A new engine adds a factory to ENGINES."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from agentgym_rl.config import EmbeddedEngineConfig
from agentgym_rl.core.engine import Delta, Engine, Interrupt, SamplingParams
from agentgym_rl.core.errors import ContextLengthError, EngineError, WeightsError
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases

Factory = Callable[[], AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def _embedded() -> AsyncIterator[Engine]:
    from agentgym_rl.engines.client.client import HttpEngine
    from agentgym_rl.engines.embedded.app import App
    from agentgym_rl.engines.embedded.engine import EmbeddedEngine
    from agentgym_rl.engines.embedded.model import load_model
    from agentgym_rl.runtime.http_server import serving

    torch.set_num_threads(1)
    config = EmbeddedEngineConfig(device="cpu", max_model_len=512)
    # Without an end-of-sequence token a reply is as long as asked for.
    model = dataclasses.replace(load_model(BUNDLED, config), eos_ids=[])
    engine = EmbeddedEngine(model, model_dir=BUNDLED, config=config, seed=0, weight_version="0.0")
    app = App(engine, served_model_name="tiny")
    async with serving(app, host="127.0.0.1", port=0) as url, engine.running():
        client = HttpEngine(url, timeout_s=20)
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def _scripted(**options: Any) -> AsyncIterator[Engine]:
    from agentgym_rl.engines.scripted import Say, ScriptedEngine

    def script(prompt):
        if max(prompt) >= 640:
            raise EngineError(f"token {max(prompt)} is not in the vocabulary")
        return Say([7] * 400, delay_s=0.001)

    yield ScriptedEngine(script, max_model_len=512, **options)


ENGINES: dict[str, Factory] = {
    "embedded": _embedded,
    "scripted": _scripted,
    "versions_at_end": partial(_scripted, versions_at_end=True),
}
WITH_A_MODEL = {"embedded"}
"""Engines that have a context to fill and read weight files; a script has neither."""


@pytest.fixture(params=ENGINES)
def make_engine(request: pytest.FixtureRequest) -> Factory:
    return ENGINES[request.param]


@pytest.fixture(params=sorted(WITH_A_MODEL))
def make_model_engine(request: pytest.FixtureRequest) -> Factory:
    return ENGINES[request.param]


def _run(make_engine: Factory, scenario):
    async def play():
        async with asyncio.timeout(30), make_engine() as engine:
            return await scenario(engine)

    return asyncio.run(play())


async def _collect(
    engine: Engine, prompt, stream=False, name="a", salt="", **sampling
) -> list[Delta]:
    params = SamplingParams(**{"max_tokens": 6, **sampling})
    names = {"request_id": name, "session_id": name, "cache_salt": salt}
    return [delta async for delta in engine.generate(prompt, params, stream=stream, **names)]


def _joined(deltas: list[Delta]) -> tuple[list[int], list[int]]:
    """(token ids, versions) of a reply."""
    return [t for d in deltas for t in d.token_ids], [v for d in deltas for v in d.versions]


@cases("stream", [False, True])
def test_every_token_has_a_logprob_a_version_and_a_time(make_engine, stream):
    before = time.monotonic()
    deltas = _run(make_engine, lambda engine: _collect(engine, [5, 6, 7], stream))
    assert deltas
    for delta in deltas:
        count = len(delta.token_ids)
        assert len(delta.logprobs) == len(delta.times_s) == count
        assert all(logprob <= 0 for logprob in delta.logprobs)
        assert all(before <= t <= time.monotonic() for t in delta.times_s)
    token_ids, versions = _joined(deltas)
    assert len(token_ids) == len(versions) == 6  # versions may lag, and are complete at the end


@cases("stream", [False, True])
def test_the_last_delta_alone_says_how_it_ended(make_engine, stream):
    deltas = _run(make_engine, lambda engine: _collect(engine, [5, 6, 7], stream))
    assert stream or len(deltas) == 1
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason in ("stop", "length")


def test_a_seed_makes_a_reply_repeatable(make_engine):
    async def scenario(engine):
        first = await _collect(engine, [5, 6, 7], name="a", seed=3)
        return first, await _collect(engine, [5, 6, 7], name="b", seed=3)

    first, second = _run(make_engine, scenario)
    assert first[0].token_ids == second[0].token_ids


def test_a_salt_does_not_change_a_reply(make_engine):
    async def scenario(engine):
        first = await _collect(engine, [5, 6, 7], name="a", seed=3, salt="v0")
        return first, await _collect(engine, [5, 6, 7], name="b", seed=3)

    first, second = _run(make_engine, scenario)
    assert first[0].token_ids == second[0].token_ids


def test_requests_run_side_by_side(make_engine):
    async def scenario(engine):
        async with asyncio.TaskGroup() as tasks:
            jobs = [
                tasks.create_task(_collect(engine, [3 + n, 4, 5], name=f"r{n}")) for n in range(20)
            ]
        return [job.result() for job in jobs]

    replies = _run(make_engine, scenario)
    assert all(reply[-1].finish_reason for reply in replies)


def test_a_prompt_without_room_is_a_context_length_error(make_model_engine):
    async def scenario(engine):
        limit = (await engine.info()).max_model_len
        with pytest.raises(ContextLengthError, match=str(limit)):
            await _collect(engine, [5] * limit)

    _run(make_model_engine, scenario)


def test_the_context_fills_with_length(make_model_engine):
    async def scenario(engine):
        limit = (await engine.info()).max_model_len
        return await _collect(engine, [5] * (limit - 1), max_tokens=9)

    (delta,) = _run(make_model_engine, scenario)
    assert len(delta.token_ids) == 1
    assert delta.finish_reason in ("stop", "length")


INTERRUPTS = get_args(Interrupt)


async def _under_way(engine, tasks, name="early") -> asyncio.Task[list[Delta]]:
    """A long reply that has begun and is far from its end."""
    started = asyncio.Event()

    async def play():
        deltas = []
        params = SamplingParams(max_tokens=300, seed=3)
        call = engine.generate([5, 6], params, request_id=name, session_id="s", stream=True)
        async for delta in call:
            deltas.append(delta)
            if len(_joined(deltas)[0]) >= 3:
                started.set()
        return deltas

    job = tasks.create_task(play())
    await started.wait()
    return job


@pytest.mark.slow
@cases("interrupt", INTERRUPTS)
def test_no_interrupt_loses_a_token_or_a_version(make_engine, tmp_path: Path, interrupt):
    path = _weights(tmp_path, version=4)

    async def scenario(engine):
        calm = await _collect(engine, [5, 6], max_tokens=300, seed=3, name="calm")
        async with asyncio.TaskGroup() as tasks:
            early = await _under_way(engine, tasks)
            await engine.pause(interrupt=interrupt)
            late = tasks.create_task(_collect(engine, [5, 6], name="late"))
            await asyncio.sleep(0.02)
            assert not late.done()
            await engine.update_weights(str(path), version=4)
            await engine.resume()
        return _joined(calm)[0], early.result(), late.result(), await _version(engine)

    calm, early, late, served = _run(make_engine, scenario)
    _check_interrupted(calm, early, interrupt)
    assert _joined(late)[1] == [4] * 6
    assert served == 4


def _check_interrupted(calm, deltas, interrupt):
    """The new weights are the old ones, so that nothing but the interrupt tells the replies."""
    token_ids, versions = _joined(deltas)
    assert len(token_ids) == len(versions)
    assert versions == sorted(versions)
    updated = {"keep": {0, 4}, "recompute": {0, 4}, "abort": {0}, "wait": {0}}
    assert set(versions) == updated[interrupt]
    assert deltas[-1].finish_reason == ("abort" if interrupt == "abort" else "length")
    assert token_ids == calm[: len(token_ids)]
    assert (len(token_ids) < len(calm)) == (interrupt == "abort")


@pytest.mark.slow
@cases("first", INTERRUPTS)
def test_pauses_may_follow_each_other(make_engine, first):
    async def scenario(engine):
        return [await _paused_twice(engine, first, second) for second in INTERRUPTS]

    for early, late in _run(make_engine, scenario):
        assert len(_joined(early)[0]) == len(_joined(early)[1]) <= 300
        assert early[-1].finish_reason in ("abort", "length")
        assert len(_joined(late)[0]) == len(_joined(late)[1]) == 6


async def _paused_twice(engine, first, second):
    """A reply under way, and one that came between two pauses."""
    async with asyncio.TaskGroup() as tasks:
        early = await _under_way(engine, tasks, f"early {second}")
        await engine.pause(interrupt=first)
        late = tasks.create_task(_collect(engine, [5, 6], name=f"late {second}"))
        await asyncio.sleep(0.01)
        await engine.pause(interrupt=second)
        await engine.pause(interrupt=second)
        if {first, second} & {"abort", "wait"}:
            await early
        assert not late.done()
        await engine.resume()
        await engine.resume()
    return early.result(), late.result()


def test_a_resume_ends_a_wait_which_says_so(make_engine):
    async def scenario(engine):
        async with asyncio.TaskGroup() as tasks:
            early = await _under_way(engine, tasks)
            wait = tasks.create_task(_refused_wait(engine))
            await asyncio.sleep(0.01)
            await engine.resume()
            await wait
            assert not early.done()
            await _collect(engine, [5, 6], name="late")
        return early.result()

    assert len(_joined(_run(make_engine, scenario))[0]) == 300


async def _refused_wait(engine):
    with pytest.raises(EngineError, match="a resume or another pause came before"):
        await engine.pause(interrupt="wait")


async def _version(engine: Engine) -> int:
    return (await engine.info()).version


def _weights(folder: Path, *, version: int) -> Path:
    """The bundled model's own weights as a new version."""
    from safetensors.torch import load_file

    from agentgym_rl.weights.parts import write_version

    return write_version(folder, version, load_file(BUNDLED / "model.safetensors"))


def test_a_bad_file_leaves_the_version_as_it_was(make_model_engine, tmp_path):
    path = _weights(tmp_path, version=4)
    path.write_bytes(path.read_bytes()[:1000])

    async def scenario(engine):
        with pytest.raises(WeightsError):
            await engine.update_weights(str(path), version=4)
        await _collect(engine, [5, 6])
        return await _version(engine)

    assert _run(make_model_engine, scenario) == 0


def test_closing_the_iterator_early_is_fine(make_engine):
    async def scenario(engine):
        params = SamplingParams(max_tokens=100)
        call = engine.generate([5], params, request_id="a", session_id="a", stream=True)
        await anext(call)
        await call.aclose()
        return await _collect(engine, [5, 6], name="b")

    assert _run(make_engine, scenario)[-1].finish_reason


def test_a_wrong_token_is_an_engine_error(make_engine):
    async def scenario(engine):
        with pytest.raises(EngineError):
            await _collect(engine, [10**6])

    _run(make_engine, scenario)


@cases("level", [1, 2])
def test_a_sleep_loses_no_token_and_no_request(make_engine, tmp_path, level):
    path = _weights(tmp_path, version=4)

    async def scenario(engine):
        calm = await _collect(engine, [5, 6], max_tokens=300, seed=3, name="calm")
        async with asyncio.TaskGroup() as tasks:
            early = await _under_way(engine, tasks)
            await engine.sleep(level=level)
            await engine.sleep(level=level)  # nothing more
            late = tasks.create_task(_collect(engine, [5, 6], name="late"))
            await asyncio.sleep(0.02)
            assert await engine.is_sleeping()
            await engine.wake_up("weights")
            await engine.update_weights(str(path), version=4)
            await asyncio.sleep(0.02)
            assert await engine.is_sleeping()
            assert not late.done()
            await engine.wake_up("kv_cache")
            assert not await engine.is_sleeping()
        return _joined(calm)[0], early.result(), late.result()

    calm, early, late = _run(make_engine, scenario)
    _check_interrupted(calm, early, "recompute")
    assert _joined(late)[1] == [4] * 6


def test_the_weights_of_a_light_sleeper_are_its_own(make_engine):
    async def scenario(engine):
        before = await _collect(engine, [5, 6], seed=3, name="before")
        await engine.sleep(level=1)
        await engine.wake_up()
        return before, await _collect(engine, [5, 6], seed=3, name="after")

    before, after = _run(make_engine, scenario)
    assert _joined(before) == _joined(after)


def test_no_resume_wakes_a_sleeper(make_engine):
    async def scenario(engine):
        async with asyncio.TaskGroup() as tasks:
            await engine.sleep(level=1)
            late = tasks.create_task(_collect(engine, [5, 6]))
            with pytest.raises(EngineError, match="sleeps"):
                await engine.resume()
            await asyncio.sleep(0.02)
            assert not late.done()
            await engine.wake_up()

    _run(make_engine, scenario)


def test_who_forgot_its_weights_stays_asleep_until_there_are_others(make_engine, tmp_path):
    path = _weights(tmp_path, version=4)

    async def scenario(engine):
        await engine.sleep(level=2)
        with pytest.raises(EngineError, match="were dropped"):
            await engine.wake_up()
        with pytest.raises(WeightsError, match="sleeps"):
            await engine.update_weights(str(path), version=4)
        await engine.wake_up("weights")
        with pytest.raises(EngineError, match="were dropped"):
            await engine.wake_up("kv_cache")
        await engine.update_weights(str(path), version=4)
        await engine.wake_up("kv_cache")
        return await _collect(engine, [5, 6])

    assert _joined(_run(make_engine, scenario))[1] == [4] * 6
