"""Long turns with updates at random moments, in each mode: nothing lost, all tokens exact."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from agentgym_rl.core import Delta, Interrupt, SamplingParams, version_label
from agentgym_rl.weights import write_version
from tests.vllm.plain import PlainForward, endless_model, weights_of, worst_difference

from .test_client import reply

UPDATES, TURNS, TOKENS = 4, 4, 250
PROMPTS = [[5 + n, 80, 33, 210] for n in range(TURNS)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that share their cores with a server wait for each other, for minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def weights() -> dict[int, Any]:
    return {version: weights_of(version) for version in range(UPDATES + 1)}


@pytest.fixture(scope="module")
def folders(weights: dict[int, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A model folder of each version, as SGLang reads them."""
    found = {}
    for version, tensors in weights.items():
        folder = found[version] = tmp_path_factory.mktemp(f"v{version}")
        save_file(tensors, folder / "model.safetensors")
        config = Path(__file__).parents[2] / "agentgym_rl/models/tiny/config.json"
        (folder / "config.json").write_text(config.read_text())
    return found


def load(server, folders, version: int, *, flush: bool = True) -> None:
    body = {"model_path": str(folders[version]), "weight_version": version_label(version)}
    server.post("/update_weights_from_disk", body | {"flush_cache": flush})


async def turn(engine, number: int, *, stream: bool = True) -> list[Delta]:
    """Replies of one turn: more than one if it is aborted and sent again with its tokens."""
    found: list[Delta] = []
    tokens: list[int] = []
    while len(tokens) < TOKENS:
        params = SamplingParams(TOKENS - len(tokens), 1.0)
        name = f"{number}.{len(found)}"
        part = await reply(
            engine, params, name=name, prompt=PROMPTS[number] + tokens, stream=stream
        )
        found.append(part)
        tokens += part.token_ids
        if part.finish_reason != "abort":
            break
    return found


async def play(server, folders, interrupt: Interrupt) -> list[list[Delta]]:
    """Turns run while versions are loaded as a publication does it."""
    engine = server.client(timeout_s=120)
    draw = random.Random(7)

    async def publish() -> None:
        for version in range(1, UPDATES + 1):
            await asyncio.sleep(draw.uniform(0.2, 0.6))
            if interrupt != "wait":
                await engine.pause(interrupt=interrupt)
            flush = interrupt != "keep"
            await asyncio.to_thread(load, server, folders, version, flush=flush)
            if interrupt != "wait":
                await engine.resume()

    try:
        async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
            turns = [tasks.create_task(turn(engine, number)) for number in range(TURNS)]
            tasks.create_task(publish())
        return [it.result() for it in turns]
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def endless(start_sglang, tmp_path_factory):
    """A server whose replies are as long as asked for."""
    folder = endless_model(tmp_path_factory.mktemp("model") / "endless")
    # llguidance takes no tokenizer without an end-of-sequence token.
    server = start_sglang(
        model_dir=folder,
        interrupt="keep",
        stream_interval=1,
        flags=("--grammar-backend", "none"),
    )
    yield server
    server.stop()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("interrupt", ["recompute", "abort", "wait", "keep"])
def test_every_token_is_of_its_version(endless, folders, weights, interrupt):
    load(endless, folders, 0)
    found = asyncio.run(play(endless, folders, interrupt))
    forward, spans = PlainForward(), 0
    for number, parts in enumerate(found):
        prompt = list(PROMPTS[number])
        assert sum(len(part.token_ids) for part in parts) == TOKENS
        for part in parts:
            versions = list(part.versions)
            assert versions == sorted(versions)
            spans = max(spans, len(set(versions)))
            # In `keep` mode a token after an update stands on older KV.
            clean = [interrupt != "keep" or v == versions[0] for v in versions]
            assert worst_difference(
                forward, prompt, part.token_ids, part.logprobs, versions,
                weights=weights, of=clean,
            ) < 1e-4  # fmt: skip
            prompt += part.token_ids
    assert (spans > 1) == (interrupt in ("recompute", "keep"))
    load(endless, folders, 0)


@pytest.mark.timeout(900)
def test_an_update_of_the_client_serves_exactly(endless, folders, weights, tmp_path):
    version = write_version(tmp_path, 3, weights[3])

    async def scenario():
        engine = endless.client()
        try:
            await engine.update_weights(str(version), version=3)
            return await engine.served_version(), await reply(engine, SamplingParams(50))
        finally:
            await engine.close()

    served, found = asyncio.run(scenario())
    assert served == 3
    assert set(found.versions) == {3}
    args = ([5, 80, 33, 210], found.token_ids, found.logprobs)
    assert worst_difference(PlainForward(), *args, found.versions, weights=weights) < 1e-4
    labels = [2] * len(found.versions)  # planted: a version one off
    assert worst_difference(PlainForward(), *args, labels, weights=weights) > 1e-2
    load(endless, folders, 0)


@pytest.mark.timeout(900)
def test_requests_that_arrive_in_a_pause_wait_for_its_end(endless, folders):
    async def scenario():
        engine = endless.client()
        found = {}
        try:
            for interrupt in ("keep", "recompute", "abort"):
                await engine.pause(interrupt=interrupt)
                late = asyncio.create_task(reply(engine, SamplingParams(4), name=interrupt))
                await asyncio.sleep(1)
                early = late.done()
                await engine.resume()
                found[interrupt] = early, len((await late).token_ids)
            return found
        finally:
            await engine.close()

    assert set(asyncio.run(scenario()).values()) == {(False, 4)}


async def some(arrived: list[float]) -> None:
    while not arrived:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_a_paused_server_sends_nothing_more_and_stays_healthy(endless):
    async def scenario():
        engine = endless.client()
        arrived: list[float] = []

        async def sample():
            call = engine.generate(
                PROMPTS[0], SamplingParams(400), request_id="p", session_id="p", stream=True
            )
            async for delta in call:
                arrived.append(len(delta.token_ids))

        try:
            async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
                tasks.create_task(sample())
                for interrupt in ("keep", "recompute"):
                    await some(arrived)
                    await engine.pause(interrupt=interrupt)
                    while arrived:  # what was sent before
                        arrived.clear()
                        await asyncio.sleep(1)
                    status, _ = await asyncio.to_thread(endless.ask, "GET", engine.health_path)
                    assert (arrived, status) == ([], 200)
                    await engine.resume()
                await some(arrived)  # it was not over yet
        finally:
            await engine.close()

    asyncio.run(scenario())
