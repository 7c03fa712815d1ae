"""Policy versions in training rows: reported late, lost, or known from when a request was sent."""

import asyncio

import pytest

from agentgym_rl.core import UNKNOWN_VERSION
from agentgym_rl.engines import Router
from agentgym_rl.engines.scripted import Say, ScriptedEngine


@pytest.fixture
def ids(spell, words):
    return spell.bytewise(words.ANSWER + words.END)


def _play(scene, words, **fields):
    """One turn; returns what its session recorded."""
    session = scene.open()
    status = asyncio.run(scene.post(session, messages=words.FIRST, **fields)).status
    return status, scene.gateway.close_session(session)


@pytest.mark.parametrize("stream", [True, False])
def test_versions_may_come_at_the_end(stage, words, ids, stream):
    engine = ScriptedEngine([Say(ids, versions=[3, *[4] * (len(ids) - 1)])], versions_at_end=True)
    scene = stage(engine)
    _, record = _play(scene, words, stream=stream)
    words.check_exact(record.rows, engine.journal)
    assert set(record.rows[0].admitted_versions[-len(ids) :].tolist()) == {UNKNOWN_VERSION}


def test_a_turn_whose_versions_nobody_named_is_the_engines_fault(stage, words, ids):
    status, record = _play(stage(ScriptedEngine([ids], has_spans=False)), words)
    assert (status, record.rows) == (503, [])
    assert "named the policy versions of 0" in record.infra_error


def _dies_after(spoken, ids, *, rest, updates):
    """A router whose first engine says the beginning, and dies before it has named versions."""
    router = Router(interrupt="keep", wait_s=1.0)

    def begins(prompt):
        if updates:
            router.begin_update(8)
        return Say(ids, fail_after=spoken)

    first, second = ScriptedEngine(begins, versions_at_end=True), ScriptedEngine([rest])
    for name, engine in (("first", first), ("second", second)):
        engine.version = 7
        router.add(name, engine, version=7)
    return router, [first, second]


@pytest.mark.parametrize("stream", [True, False])
def test_a_turn_that_outlives_its_engine_is_one_exact_row(stage, words, ids, stream):
    router, engines = _dies_after(5, ids, rest=ids[5:], updates=False)
    status, record = _play(stage(router), words, stream=stream)
    words.check_exact(record.rows, [entry for engine in engines for entry in engine.journal])
    [row] = record.rows
    assert (status, row.num_trained, record.num_turns) == (200, len(ids), 1)
    assert set(row.admitted_versions[row.loss_mask].tolist()) == {7}
    assert record.counters["unknown_version_tokens"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_of_an_unknown_version_are_context(stage, words, ids, stream):
    router, _ = _dies_after(5, ids, rest=ids[5:], updates=True)
    status, record = _play(stage(router), words, stream=stream)
    [row] = record.rows
    sampled = len(row) - len(ids)
    assert (status, row.tokens[sampled:].tolist()) == (200, ids)
    assert row.loss_mask[sampled:].tolist() == [False] * 5 + [True] * (len(ids) - 5)
    assert row.policy_versions[sampled:].tolist() == [UNKNOWN_VERSION] * 5 + [7] * (len(ids) - 5)
    assert (row.temperatures[sampled:] == 1).all()
    counters = record.counters
    assert (counters["unknown_version_tokens"], counters["trained_tokens"]) == (5, len(ids) - 5)


def test_a_turn_may_be_admitted_at_several_versions(stage, words, ids):
    router, [_, second] = _dies_after(5, ids, rest=ids[5:], updates=False)
    router.remove("second")
    second.version = 8
    router.add("second", second, version=8)
    _, record = _play(stage(router), words)
    [row] = record.rows
    expected = [7] * 5 + [8] * (len(ids) - 5)
    assert row.admitted_versions[-len(ids) :].tolist() == expected
    assert row.policy_versions[-len(ids) :].tolist() == expected
