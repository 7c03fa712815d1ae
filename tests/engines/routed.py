"""A story that any engine can go on telling, and turns of it through a router."""

import asyncio
from dataclasses import dataclass

from agentgym_rl.core import Delta, SamplingParams
from agentgym_rl.engines import Router
from agentgym_rl.engines.scripted import Say

PROMPT, STOP = [1, 2, 3], 9
STORY = [*range(100, 112), STOP]


def tells(story=STORY, **how):
    """A script that tells the story from where the prompt has got to."""
    return lambda prompt: Say(story[len(prompt) - len(PROMPT) :], **how)


def routed(*engines, version=0, **options):
    """A router over engines "0", "1", ..., and an "on_failure" that keeps a list."""
    options = {"interrupt": "keep", "wait_s": 0.05} | options
    failures = []
    router = Router(on_failure=lambda *failure: failures.append(failure), **options)
    for name, engine in enumerate(engines):
        router.add(str(name), engine, version=version)
    return router, failures


def begin(
    router, *, request="r", session="s", stream=True, cache_salt="", max_tokens=50, **sampling
):
    params = SamplingParams(max_tokens, **{"seed": 7, "stop_token_ids": (STOP,)} | sampling)
    ids = {"request_id": request, "session_id": session}
    return router.generate(PROMPT, params, **ids, stream=stream, cache_salt=cache_salt)


async def some(stream, count):
    return [await anext(stream) for _ in range(count)]


@dataclass
class Received:
    """All deltas of a turn."""

    deltas: list[Delta]

    def __post_init__(self) -> None:
        self.ids = [id for delta in self.deltas for id in delta.token_ids]
        self.logprobs = [lp for delta in self.deltas for lp in delta.logprobs]
        self.versions = [version for delta in self.deltas for version in delta.versions]
        self.admitted = [d.admitted_version for d in self.deltas for _ in d.token_ids]
        finishes = [d.finish_reason for d in self.deltas if d.finish_reason is not None]
        assert len(self.versions) == len(self.ids)
        assert len(finishes) == 1
        assert self.deltas[-1].finish_reason == finishes[0]
        self.finish = finishes[0]


async def received(stream, before=()):
    return Received([*before, *[delta async for delta in stream]])


async def received_while(stream, other):
    """Return all deltas of a turn, while `other` runs."""
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(received(stream))
        await other
    return asked.result()
