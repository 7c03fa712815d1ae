"""The embedded engine with and without its prefix cache: groups, and conversations.

The decode thread's CPU seconds are counted. Each round plays the work with the cache on, then off,
so that a busy machine affects both alike.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from arl_embedded.engine import EmbeddedEngine
from arl_embedded.model import LoadedModel, load_model
from arl_embedded.section import EmbeddedEngineConfig

from agentgym_rl.engines import protocol

GROUPS, MEMBERS, PROMPT_TOKENS = 1, 8, 160
CONVERSATIONS, TURNS, NEW_TOKENS = 2, 10, 24
REPLY_TOKENS = 16

Play = Callable[[EmbeddedEngine, int], Awaitable[int]]
"""A function that plays some work by its seed, and returns the number of distinct tokens."""


def rows(name: str, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each kind of work and each setting of the cache; medians over the rounds."""
    return asyncio.run(_rows(name, folder, rounds))


async def _rows(name: str, folder: Path, rounds: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        engines = {}
        for cache in ("by_version", "off"):
            config = EmbeddedEngineConfig(device="cpu", max_model_len=1024, prefix_cache=cache)
            model = load_model(folder, config)
            engines[cache] = await stack.enter_async_context(_running(model, folder, config))
        for kind, play in (("groups of 8", _groups), ("10-turn conversations", _conversations)):
            of: dict[str, list[dict[str, float]]] = {cache: [] for cache in engines}
            for number in range(rounds + 1):
                for cache, engine in engines.items():
                    measured = await _measured(engine, play, number)
                    if number:  # the first round warms both up
                        of[cache].append(measured)
            found += [_row(name, kind, cache, of[cache], of["off"]) for cache in engines]
    return found


@asynccontextmanager
async def _running(
    model: LoadedModel, folder: Path, config: EmbeddedEngineConfig
) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(model, model_dir=folder, config=config, seed=0, weight_version="0.0")
    async with engine.running():
        yield engine


async def _measured(engine: EmbeddedEngine, play: Play, seed: int) -> dict[str, float]:
    """Return the CPU seconds of the decode thread in one round."""
    await engine.forget()
    before, cpu_s, start = engine.loop.counters.prefilled_tokens, await _cpu_s(engine), time.time()
    distinct = await play(engine, seed)
    return {
        "seconds": time.time() - start,
        "cpu_s": await _cpu_s(engine) - cpu_s,
        "prefilled": engine.loop.counters.prefilled_tokens - before,
        "distinct": distinct,
    }


async def _cpu_s(engine: EmbeddedEngine) -> float:
    return await asyncio.wrap_future(engine.loop.between_steps(time.thread_time))


async def _groups(engine: EmbeddedEngine, seed: int) -> int:
    draw = random.Random(seed)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(GROUPS):
            prompt = _drawn(engine, draw, PROMPT_TOKENS)
            for _ in range(MEMBERS):
                tasks.create_task(reply(engine, prompt, REPLY_TOKENS))
    return GROUPS * PROMPT_TOKENS


async def _conversations(engine: EmbeddedEngine, seed: int) -> int:
    async with asyncio.TaskGroup() as tasks:
        jobs = [
            tasks.create_task(_conversation(engine, random.Random(f"{seed} {number}")))
            for number in range(CONVERSATIONS)
        ]
    return sum(job.result() for job in jobs)


async def _conversation(engine: EmbeddedEngine, draw: random.Random) -> int:
    prompt = _drawn(engine, draw, PROMPT_TOKENS)
    for turn in range(TURNS):
        answer = await reply(engine, prompt, REPLY_TOKENS)
        if turn < TURNS - 1:
            prompt = [*prompt, *answer, *_drawn(engine, draw, NEW_TOKENS)]
    return len(prompt)


def _drawn(engine: EmbeddedEngine, draw: random.Random, count: int) -> list[int]:
    return draw.choices(range(3, engine.model.vocab_size), k=count)


async def reply(engine: EmbeddedEngine, prompt: list[int], num_tokens: int) -> list[int]:
    """Sample a number of tokens after a prompt, without HTTP."""
    params = protocol.SamplingBody(max_tokens=num_tokens, ignore_eos=True, logprobs=0)
    request = engine.submit(protocol.GenerateBody(token_ids=prompt, sampling_params=params))
    try:
        async for _ in engine.parts(request):
            pass
    finally:
        engine.release(request)
    assert request.error is None, request.error
    return request.token_ids


def _row(
    name: str,
    kind: str,
    cache: str,
    measured: list[dict[str, float]],
    without: list[dict[str, float]],
) -> dict[str, Any]:
    def median(key: str) -> float:
        return statistics.median(of[key] for of in measured)

    faster = [a["cpu_s"] / b["cpu_s"] for a, b in zip(without, measured, strict=True)]
    return {
        "model": name,
        "work": kind,
        "prefix_cache": cache,
        "tokens_distinct": round(median("distinct")),
        "tokens_prefilled": round(median("prefilled")),
        "prefilled_over_distinct": round(median("prefilled") / median("distinct"), 3),
        "decode_thread_cpu_s": round(median("cpu_s"), 3),
        "wall_s": round(median("seconds"), 3),
        "times_as_fast_as_off": round(statistics.median(faster), 2),
    }
