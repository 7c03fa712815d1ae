"""Eight long turns, twenty updates at random moments, in each mode: nothing lost, all exact."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import dataclass, field
from typing import get_args

import pytest
from arl_vllm.client import VllmEngine

from agentgym_rl.core import Delta, Interrupt, SamplingParams
from agentgym_rl.engines import Router
from agentgym_rl.weights import Publisher, SharedFiles
from tests.kit.publishing import publish_now, published

from .plain import PlainForward, endless_model, weights_of, worst_difference

UPDATES, TURNS, TOKENS = 20, 8, 900
SLACK_S = 3.0
"""Between the step that sampled a token and its arrival here, on a busy machine."""


@pytest.fixture(scope="module")
def server(start_vllm, tmp_path_factory):
    model_dir = endless_model(tmp_path_factory.mktemp("model") / "endless")
    server = start_vllm(model_dir=model_dir, max_model_len=1024, stream_interval=1)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def weights():
    return {version: weights_of(version) for version in range(UPDATES + 1)}


@dataclass
class Turn:
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    finish: str | None = None

    @property
    def stands_on_its_version(self) -> list[bool]:
        """Per token: whether its version was known to serve when the request was sent."""
        return [v == a for v, a in zip(self.versions, self.admitted, strict=True)]

    def take(self, delta: Delta) -> None:
        self.tokens += delta.token_ids
        self.logprobs += delta.logprobs
        self.versions += delta.versions
        self.admitted += [delta.admitted_version] * len(delta.token_ids)
        self.times_s += delta.times_s
        self.finish = delta.finish_reason


@dataclass
class Played:
    turns: list[Turn]
    swaps: dict[int, tuple[float, float]]
    """version -> (before its pause, after its resume), CLOCK_MONOTONIC seconds."""
    router: Router


async def play(server, folder, weights, interrupt: Interrupt) -> Played:
    """Eight turns run while a thread publishes as the trainer does."""
    engine = VllmEngine(server.url, send_seed=False, polls_staging=True)
    router = Router(interrupt=interrupt, wait_s=60)
    loop = asyncio.get_running_loop()
    publisher = Publisher(
        transport=SharedFiles(folder), interrupt=interrupt, timeout_s=60, polls_staging=True
    )
    publisher.prepare(0, weights[0])
    await published(publisher, {"engine-0": server.url}, 0)
    router.add("engine-0", engine, version=0)
    played = Played([Turn([5 + i, 80, 33, 210]) for i in range(TURNS)], {}, router)
    stop = threading.Event()

    def publish() -> None:
        draw = random.Random(7)
        for version in range(1, UPDATES + 1):
            publisher.prepare(version, weights[version])
            stop.wait(draw.uniform(0.0, 0.15))
            loop.call_soon_threadsafe(router.begin_update, version)
            start = time.monotonic()
            publish_now(publisher, {"engine-0": server.url}, version)
            played.swaps[version] = (start, time.monotonic())
            loop.call_soon_threadsafe(router.end_update, version, ["engine-0"])

    try:
        async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
            for number, turn in enumerate(played.turns):
                tasks.create_task(sample(router, turn, f"{interrupt}-{number}"))
            await asyncio.to_thread(publish)
    finally:
        stop.set()
        publisher.close()
        await engine.close()
    return played


async def sample(router: Router, turn: Turn, name: str) -> None:
    """Turn after turn until all updates are through would hide an end: one long turn each."""
    sampling = SamplingParams(max_tokens=TOKENS)
    async for delta in router.generate(
        turn.prompt, sampling, request_id=name, session_id=name, stream=True
    ):
        turn.take(delta)


@pytest.fixture(scope="module", params=get_args(Interrupt))
def played(request, server, weights, tmp_path_factory) -> tuple[Interrupt, Played]:
    folder = tmp_path_factory.mktemp("versions")
    return request.param, asyncio.run(play(server, folder, weights, request.param))


def test_every_turn_is_whole(played):
    _, found = played
    for turn in found.turns:
        assert turn.finish == "length"
        assert len(turn.tokens) == len(turn.logprobs) == len(turn.versions) == TOKENS
        assert turn.versions == sorted(turn.versions)
    assert found.router.counters["failovers"] == 0


def test_turns_span_updates_unless_these_wait(played):
    interrupt, found = played
    spans = {len(set(turn.versions)) for turn in found.turns}
    assert max(spans) == 1 if interrupt == "wait" else max(spans) > 5


def test_boundaries_agree_with_the_log_of_updates(played):
    _, found = played
    for turn in found.turns:
        for version, arrived in zip(turn.versions, turn.times_s, strict=True):
            if version:
                assert arrived >= found.swaps[version][0]
            if version < UPDATES:
                assert arrived <= found.swaps[version + 1][1] + SLACK_S


def test_logprobs_are_those_of_the_checkpoints(played, weights):
    """In `keep` mode only of tokens before an update: the others stand on older KV."""
    interrupt, found = played
    forward = PlainForward()
    for turn in found.turns[:4]:
        clean = [interrupt != "keep" or here for here in turn.stands_on_its_version]
        assert any(clean)
        found_worst = worst_difference(
            forward, turn.prompt, turn.tokens, turn.logprobs, turn.versions,
            weights=weights, of=clean,
        )  # fmt: skip
        assert found_worst < 1e-3


def test_in_keep_mode_tokens_after_an_update_are_no_plain_forward(played, weights):
    interrupt, found = played
    if interrupt != "keep":
        pytest.skip("only keep leaves old KV in place")
    turn = max(found.turns, key=lambda t: len(set(t.versions)))
    mixed = [not here for here in turn.stands_on_its_version]
    assert worst_difference(
        PlainForward(), turn.prompt, turn.tokens, turn.logprobs, turn.versions,
        weights=weights, of=mixed,
    ) > 0.01  # fmt: skip
