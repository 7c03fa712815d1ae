"""Deadlines follow the lack of progress: a slow turn that gets tokens lives, a silent one ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from arl_embedded.admission import HttpError
from arl_embedded.engine import EmbeddedEngine
from arl_embedded.journal import Counters
from arl_embedded.section import EmbeddedEngineConfig
from arl_plan.clock import run_virtual

from agentgym_rl.engines import Router
from agentgym_rl.engines.client.http import HttpPool, _Channel
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from agentgym_rl.gateway import SessionSampling
from agentgym_rl.runtime.pausable_clock import MAX_WAIT_FACTOR, AwakeTime
from tests.kit.cases import cases

LIMIT_S = 5.0


def routed(*replies) -> Router:
    """A router with one engine that gives these replies, in order."""
    router = Router(interrupt="keep", wait_s=1.0)
    router.add("one", ScriptedEngine(list(replies)), version=0)
    return router


def asked(stage, words, sampler, *, requests=1, **fields):
    """Ask at the same time; the statuses, and the virtual seconds until each answer."""
    scene = stage(sampler)

    async def ask(number: int) -> tuple[int, float]:
        session = scene.gateway.open_session(
            sampling=SessionSampling(max_tokens=512),
            session_id=f"e{number}",
            turn_timeout_s=LIMIT_S,
        )
        asking = {"messages": words.FIRST, "hang_up_s": 1e6, **fields}
        status = (await scene.post(session, **asking)).status
        return status, asyncio.get_running_loop().time()

    async def main():
        return await asyncio.gather(*map(ask, range(requests)))

    return run_virtual(main())


@cases("stream", [False, True])
def test_a_slow_turn_that_gets_tokens_is_answered(stage, spell, words, stream):
    ids = spell.canonical("one two three four five six" + words.END)
    slow = Say(ids, delay_s=0.8 * LIMIT_S)
    ((status, took_s),) = asked(stage, words, routed(slow), stream=stream)
    assert (status, took_s) == (200, pytest.approx(len(ids) * 0.8 * LIMIT_S))
    assert took_s > 4 * LIMIT_S


@cases("stream", [False, True])
def test_a_silent_turn_ends(stage, spell, words, stream):
    silent = Say(spell.canonical("one" + words.END), delay_s=1e5)
    ((status, took_s),) = asked(stage, words, routed(silent), stream=stream)
    assert (status, took_s) == (504, pytest.approx(LIMIT_S))


def test_a_turn_that_falls_silent_ends(stage, spell, words):
    one, *rest = spell.canonical("one two three four" + words.END)

    class Stuck(ScriptedEngine):
        async def _play(self, say, call):
            async for delta in super()._play(say, call):
                yield delta
                await asyncio.sleep(1e5)

    router = Router(interrupt="keep", wait_s=1.0)
    router.add("one", Stuck([Say([one, *rest], delay_s=3.0)]), version=0)
    ((status, took_s),) = asked(stage, words, router)
    assert (status, took_s) == (504, pytest.approx(3.0 + LIMIT_S))


def test_a_turn_may_wait_behind_others_but_not_for_ever(stage, spell, words):
    end = spell.canonical(words.END)
    most_s = MAX_WAIT_FACTOR * LIMIT_S
    busy = Say(spell.canonical("one two ") * 100 + end, delay_s=0.5 * LIMIT_S)
    queued, lost = Say(end, delay_s=10 * LIMIT_S), Say(end, delay_s=1e5)
    found = asked(stage, words, routed(busy, queued, lost), requests=3)
    (first, _), waited, given_up = found
    assert first == 200
    assert waited == (200, pytest.approx(10 * LIMIT_S))
    assert given_up == (504, pytest.approx(most_s))


def test_a_sampler_that_tells_nothing_is_silent(stage, spell, words):
    slow = Say(spell.canonical("one two three four five" + words.END), delay_s=0.8 * LIMIT_S)
    ((status, took_s),) = asked(stage, words, ScriptedEngine([slow]))
    assert (status, took_s) == (504, pytest.approx(LIMIT_S))


class _Wire(asyncio.Transport):
    def writelines(self, list_of_data) -> None: ...

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@cases("heard", ["own", "others", "none"])
def test_a_reply_waits_as_long_as_its_engine_sends(heard):
    async def main() -> float:
        loop, pool = asyncio.get_running_loop(), HttpPool("http://engine")
        channels = [_Channel(loop, pool) for _ in range(2)]
        for channel in channels:
            channel.connection_made(_Wire())
        replies = [channel.send(b"", b"", LIMIT_S, 1 << 20) for channel in channels]
        channels[0].data_received(HEAD)
        channels[1].data_received(HEAD)
        for _ in range(6):
            await asyncio.sleep(0.8 * LIMIT_S)
            if heard != "none":
                channels[heard == "others"].data_received(b".")
        with pytest.raises(TimeoutError):
            await replies[0].whole()
        for reply in replies:
            reply.close()
        return loop.time()

    ended_s = run_virtual(main())
    # the last piece, or the head, and then a silence; what has arrived is given out first
    assert ended_s == pytest.approx((5.8 if heard != "none" else 4.8) * LIMIT_S)


class _Engine(EmbeddedEngine):
    """The part of an engine that follows a request."""

    def __init__(self) -> None:
        self._config = EmbeddedEngineConfig(request_timeout_s=LIMIT_S)
        self._awake = AwakeTime()
        self.loop: Any = SimpleNamespace(counters=Counters())


@cases("steps, refused_s", [(0, 1), (12, 13), (1000, MAX_WAIT_FACTOR)])
def test_an_engine_keeps_a_queued_request_while_it_decodes(steps, refused_s):
    async def main() -> float:
        engine = _Engine()
        request: Any = SimpleNamespace(id="r", wakeup=asyncio.Event())

        async def decode() -> None:
            for _ in range(steps):
                await asyncio.sleep(LIMIT_S * 0.999)
                engine.loop.counters.steps += 1

        async with asyncio.TaskGroup() as tasks:
            decoding = tasks.create_task(decode())
            with pytest.raises(HttpError, match=r"engine\.request_timeout_s"):
                async for _ in engine.parts(request):
                    pass
            decoding.cancel()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(refused_s * LIMIT_S, rel=0.1)
