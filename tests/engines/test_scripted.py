"""The scripted engine's own promises; what every engine promises is in tests/contracts."""

import asyncio

import pytest

from agentgym_rl.core import EngineError, SamplingParams
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from tests.kit.cases import cases

SAMPLING = SamplingParams(max_tokens=9)


def _play(scenario):
    async def play():
        async with asyncio.timeout(60):
            return await scenario()

    return asyncio.run(play())


async def _all(engine, *, stream=True, salt=""):
    names = {"request_id": "a", "session_id": "s", "cache_salt": salt}
    return [delta async for delta in engine.generate([1], SAMPLING, stream=stream, **names)]


def test_the_journal_notes_the_salt():
    engine = ScriptedEngine([[5], [6]])
    _play(lambda: _all(engine, salt="v3"))
    _play(lambda: _all(engine))
    assert [entry.cache_salt for entry in engine.journal] == ["v3", ""]


@cases(
    "options, versions",
    [
        ({}, [[0], [0], [0]]),
        ({"versions_at_end": True}, [[], [], [0, 0, 0]]),
        ({"has_spans": False}, [[], [], []]),
    ],
)
def test_versions_are_told_as_asked_and_always_noted(options, versions):
    engine = ScriptedEngine([[5, 6, 7]], **options)
    assert [delta.versions for delta in _play(lambda: _all(engine))] == versions
    assert engine.journal[0].versions == [0, 0, 0]


def test_versions_that_come_at_the_end_are_lost_with_the_engine():
    engine = ScriptedEngine([Say([5, 6, 7], fail_after=2)], versions_at_end=True)

    async def scenario():
        call = engine.generate([1], SAMPLING, request_id="a", session_id="s", stream=True)
        deltas = [await anext(call), await anext(call)]
        with pytest.raises(EngineError, match="after 2 tokens"):
            await anext(call)
        return deltas

    assert [(delta.token_ids, delta.versions) for delta in _play(scenario)] == [
        ([5], []),
        ([6], []),
    ]


@cases("stream", [False, True])
def test_an_abort_ends_a_request_with_what_it_has(stream):
    engine = ScriptedEngine([Say([5] * 9, delay_s=0.01)])

    async def scenario():
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_all(engine, stream=stream))
            while not (engine.journal and engine.journal[0].token_ids):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await engine.pause(interrupt="abort")
        return job.result()

    deltas = _play(scenario)
    got = [token for delta in deltas for token in delta.token_ids]
    assert (got, deltas[-1].finish_reason) == (engine.journal[0].token_ids, "abort")
    assert 0 < len(got) < 9
    assert not engine.journal[0].aborted  # by its client, that is
