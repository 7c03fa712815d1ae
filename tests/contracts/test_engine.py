"""What every engine promises. A new engine adds a factory to ENGINES."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest
import torch

from agentgym_rl.config import EngineConfig
from agentgym_rl.engine import Delta, Engine, SamplingParams
from agentgym_rl.errors import ContextLengthError, EngineError, WeightsError
from agentgym_rl.model import BUNDLED

Factory = Callable[[], AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def _embedded() -> AsyncIterator[Engine]:
    from agentgym_rl.asgi import serving
    from agentgym_rl.engines.client import HttpEngine
    from agentgym_rl.engines.embedded.app import App
    from agentgym_rl.engines.embedded.engine import EmbeddedEngine
    from agentgym_rl.engines.embedded.model import load_model

    torch.set_num_threads(1)
    config = EngineConfig(device="cpu", max_model_len=128)
    model = load_model(BUNDLED, config)
    engine = EmbeddedEngine(model, model_dir=BUNDLED, config=config, seed=0, weight_version="0.0")
    app = App(engine, served_model_name="tiny")
    async with serving(app, host="127.0.0.1", port=0) as url, engine.running():
        client = HttpEngine(url, timeout_s=20)
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def _scripted() -> AsyncIterator[Engine]:
    from agentgym_rl.engines.scripted import Say, ScriptedEngine

    def script(prompt):
        if max(prompt) >= 640:
            raise EngineError(f"token {max(prompt)} is not in the vocabulary")
        return Say([7] * 100, delay_s=0.001)

    yield ScriptedEngine(script, max_model_len=128)


ENGINES: dict[str, Factory] = {"embedded": _embedded, "scripted": _scripted}
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


async def _collect(engine: Engine, prompt, stream=False, name="a", **sampling) -> list[Delta]:
    params = SamplingParams(**{"max_tokens": 6, **sampling})
    call = engine.generate(prompt, params, request_id=name, session_id=name, stream=stream)
    return [delta async for delta in call]


@pytest.mark.parametrize("stream", [False, True])
def test_every_token_has_a_logprob_a_version_and_a_time(make_engine, stream):
    before = time.monotonic()
    deltas = _run(make_engine, lambda engine: _collect(engine, [5, 6, 7], stream))
    assert deltas
    for delta in deltas:
        count = len(delta.token_ids)
        assert len(delta.logprobs) == len(delta.versions) == len(delta.times_s) == count
        assert all(logprob <= 0 for logprob in delta.logprobs)
        assert all(before <= t <= time.monotonic() for t in delta.times_s)
    assert sum(len(delta.token_ids) for delta in deltas) <= 6


@pytest.mark.parametrize("stream", [False, True])
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


def test_a_paused_engine_answers_after_resume(make_engine):
    async def scenario(engine):
        await engine.pause(recompute=False)
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_collect(engine, [5, 6]))
            await asyncio.sleep(0.05)
            assert not job.done()
            await engine.resume()
        return job.result()

    assert _run(make_engine, scenario)[-1].finish_reason


@pytest.mark.parametrize("recompute", [False, True])
def test_an_update_is_stamped_from_the_next_token_on(make_engine, tmp_path: Path, recompute):
    path = _weights(tmp_path, version=4)

    async def scenario(engine):
        params = SamplingParams(max_tokens=100, temperature=5.0)
        versions: list[int] = []
        async with aclosing(
            engine.generate([5, 6], params, request_id="a", session_id="a", stream=True)
        ) as call:
            async for delta in call:
                versions += delta.versions
                if not await _version(engine) and len(versions) >= 3:
                    await engine.pause(recompute=recompute)
                    await engine.update_weights(str(path), version=4)
                    await engine.resume()
        return versions, await _version(engine)

    versions, served = _run(make_engine, scenario)
    assert served == 4
    assert versions == sorted(versions)
    assert versions[0] == 0
    assert set(versions) <= {0, 4}


async def _version(engine: Engine) -> int:
    return (await engine.info()).version


def _weights(folder: Path, *, version: int) -> Path:
    """The bundled model's own weights as a new version."""
    from safetensors.torch import load_file

    from agentgym_rl.weights.files import write_version

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
