"""Routing while weights change: versions, aborts, engines without spans, and cache salts."""

import asyncio

import pytest
from arl_plan.clock import run_virtual

from agentgym_rl.core import UNKNOWN_VERSION, EngineError
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from tests.kit.cases import cases

from .routed import PROMPT, STORY, begin, received, received_while, routed, some, tells


# ---------------------------------------------------------------------- versions nobody reported
async def _dying(router, first, *, updates, told=6):
    """A turn whose first engine dies after some tokens; an update begins after four of them."""
    stream = begin(router)
    before = await some(stream, 4)
    if updates:
        router.begin_update(1)
    before += await some(stream, told - 4)
    first.dies = True
    return await received(stream, before)


class Mortal(ScriptedEngine):
    """Says its versions at the end only, and can be told to die before."""

    dies = False

    def __init__(self, script):
        super().__init__(script, versions_at_end=True)

    def _sample(self, *arguments):
        if self.dies:
            raise EngineError("died")
        return super()._sample(*arguments)


@cases("updates", [False, True])
def test_tokens_whose_versions_died_untold(updates):
    first = Mortal(tells())
    router, _ = routed(first, ScriptedEngine(tells()))
    turn = asyncio.run(_dying(router, first, updates=updates))
    lost = [UNKNOWN_VERSION] * 2 if updates else [0] * 2
    assert turn.ids == STORY
    assert turn.versions == [0] * 4 + lost + [0] * (len(STORY) - 6)
    assert set(turn.admitted) == {0}
    assert router.counters["unknown_version_tokens"] == 2 * updates


def test_a_request_sent_during_an_update_is_of_no_known_version():
    first = Mortal(tells())
    router, _ = routed(first, ScriptedEngine(tells()))
    router.begin_update(1)
    turn = asyncio.run(_dying(router, first, updates=False))
    assert turn.versions == [UNKNOWN_VERSION] * 6 + [0] * (len(STORY) - 6)


def test_an_update_that_came_and_went_leaves_no_doubt_about_what_came_before():
    first = Mortal(tells())
    router, _ = routed(first, ScriptedEngine(tells()))

    async def play():
        stream = begin(router)
        before = await some(stream, 3)
        router.begin_update(1)
        router.end_update(1, ["1"])
        before += await some(stream, 1)
        first.dies = True
        return await received(stream, before)

    turn = asyncio.run(play())
    assert turn.versions == [0, 0, 0, UNKNOWN_VERSION] + [0] * (len(STORY) - 4)
    assert turn.admitted == [0] * 4 + [1] * (len(STORY) - 4)


def test_versions_said_at_the_end_are_the_engines_own():
    versions = [5] * 3 + [6] * (len(STORY) - 3)
    engine = ScriptedEngine([Say(STORY, versions=versions)], versions_at_end=True)
    router, _ = routed(engine, version=5)
    turn = asyncio.run(received(begin(router)))
    assert (turn.versions, set(turn.admitted)) == (versions, {5})


def test_an_engine_that_finishes_without_naming_versions_has_broken_its_promise():
    engine = ScriptedEngine(tells(), has_spans=False)
    router, _ = routed(engine)
    with pytest.raises(EngineError, match="named the policy versions of 0"):
        asyncio.run(received(begin(router)))


# ---------------------------------------------------------------------- aborts
@cases("stream", [True, False])
def test_an_aborted_turn_goes_on_where_it_was(stream):
    says = iter([Say(STORY[:5], "abort"), Say([], "abort"), Say(STORY[5:])])
    engine, other = ScriptedEngine(lambda prompt: next(says)), ScriptedEngine(tells())
    router, failures = routed(engine, other, interrupt="abort")
    turn = asyncio.run(received(begin(router, stream=stream)))
    assert (turn.ids, turn.finish, other.journal, failures) == (STORY, "stop", [], [])
    first, second, third = engine.journal
    assert list(third.prompt) == list(second.prompt) == PROMPT + STORY[:5]
    assert [e.request_id for e in engine.journal] == ["r", "r.1", "r.2"]
    assert [e.sampling.max_tokens for e in engine.journal] == [50, 45, 45]
    assert len({e.sampling.seed for e in engine.journal}) == 3
    assert first.sampling.stop_token_ids == third.sampling.stop_token_ids
    assert router.counters["resubmissions"] == 2


@cases(
    "asked, finish",
    [({"stop_token_ids": (STORY[4],)}, "stop"), ({"max_tokens": 5}, "length")],
)
def test_an_aborted_turn_that_had_all_it_wanted_is_finished(asked, finish):
    engine = ScriptedEngine(lambda prompt: Say(STORY[:5], "abort"))
    router, _ = routed(engine, interrupt="abort")
    turn = asyncio.run(received(begin(router, stream=False, **asked)))
    assert (turn.ids, turn.finish) == (STORY[:5], finish)
    assert len(engine.journal) == len(turn.deltas) == 1
    assert router.counters["resubmissions"] == 0


def test_an_engine_that_aborts_for_ever_is_given_up():
    engine = ScriptedEngine(lambda prompt: Say([], "abort"))
    router, _ = routed(engine, interrupt="abort")
    with pytest.raises(EngineError, match="interrupted 200 times, the last time by 0: aborted"):
        asyncio.run(received(begin(router)))


async def _updated(router, engine, version, *, interrupt="abort"):
    """A whole publication, as the trainer does it."""
    router.begin_update(version)
    await engine.pause(interrupt=interrupt)
    await engine.update_weights("", version=version)
    await engine.resume()
    router.end_update(version, ["0"])


@cases("stream", [True, False])
@cases("has_spans", [True, False])
def test_a_turn_through_an_aborting_update(has_spans, stream):
    engine = ScriptedEngine(tells(delay_s=0.005), has_spans=has_spans, versions_at_end=True)
    router, _ = routed(interrupt="abort")
    router.add("0", engine, version=0, has_spans=has_spans)

    async def update():
        await asyncio.sleep(0.03)
        await _updated(router, engine, 1)

    turn = run_virtual(received_while(begin(router, stream=stream), update()))
    before, after = engine.journal
    assert turn.ids == before.token_ids + after.token_ids == STORY
    assert turn.versions == turn.admitted == before.versions + after.versions
    assert (set(before.versions), set(after.versions)) == ({0}, {1})
    assert stream or len(turn.deltas) == 2


# ---------------------------------------------------------------------- engines without spans
def _spanless(**how):
    engine = ScriptedEngine(tells(**how), has_spans=False)
    router, failures = routed(interrupt="abort", wait_s=0.2)
    router.add("0", engine, version=0, has_spans=False)
    return engine, router, failures


def test_without_spans_tokens_are_stamped_as_they_come():
    _, router, _ = _spanless()
    turn = asyncio.run(received(begin(router)))
    assert (turn.ids, set(turn.versions), set(turn.admitted)) == (STORY, {0}, {0})
    assert len(turn.deltas) == len(STORY)


def test_a_request_that_ran_when_the_update_began_keeps_its_tokens():
    engine, router, _ = _spanless()

    async def play():
        stream = begin(router)
        before = await some(stream, 2)
        router.begin_update(1)  # still staging: the engine samples on, to the end
        before += [await anext(stream)]
        return await received(stream, before)

    turn = asyncio.run(play())
    assert (turn.ids, set(turn.versions)) == (STORY, {0})
    assert (len(engine.journal), router.counters["discarded_tokens"]) == (1, 0)


@cases("ends_first", [True, False])
def test_a_request_that_may_have_waited_for_the_new_weights_is_asked_again(ends_first):
    engine, router, _ = _spanless(delay_s=0.002)

    async def update():
        await asyncio.sleep(0)
        router.begin_update(1)  # sent, and no token yet: nobody knows how far it got
        engine.version = 1
        await asyncio.sleep(0.01 if ends_first else 0.08)
        router.end_update(1, ["0"])

    turn = run_virtual(received_while(begin(router), update()))
    first, second = engine.journal
    assert turn.ids == first.token_ids == second.token_ids == STORY
    assert turn.versions == turn.admitted == second.versions == [1] * len(STORY)
    assert router.counters["discarded_tokens"] == len(STORY)


def test_only_the_tokens_in_doubt_are_asked_again():
    engine, router, _ = _spanless()

    async def play():
        stream = begin(router)
        before = await some(stream, 3)
        router.begin_update(1)
        router.end_update(1, ["0"])  # and it was never aborted: the rest may be of either
        return await received(stream, before)

    turn = asyncio.run(play())
    first, second = engine.journal
    assert (turn.ids, list(second.prompt)) == (STORY, PROMPT + STORY[:3])
    assert turn.versions == turn.admitted == [0] * 3 + [1] * (len(STORY) - 3)
    assert router.counters["discarded_tokens"] == len(first.token_ids) - 3 > 0


def test_without_spans_nothing_is_sent_during_an_update():
    engine, router, _ = _spanless()

    async def play():
        router.begin_update(1)
        with pytest.raises(EngineError, match="engine that takes requests"):
            await received(begin(router))
        asyncio.get_running_loop().call_later(0.01, router.end_update, 1, ["0"])
        return await received(begin(router))

    turn = asyncio.run(play())
    assert (len(engine.journal), set(turn.versions), router.counters["waits"]) == (1, {1}, 2)


def test_without_spans_what_a_dying_engine_said_before_the_update_counts():
    engine, router, failures = _spanless()
    engine._script = lambda prompt: Say(STORY[len(prompt) - 3 :], fail_after=6)

    async def play():
        stream = begin(router)
        before = await some(stream, 4)
        router.add("1", ScriptedEngine(tells()), version=0)
        router.begin_update(1)
        return await received(stream, before)

    turn = asyncio.run(play())
    assert (turn.ids, set(turn.versions), len(failures)) == (STORY, {0}, 1)
    assert len(engine.journal[0].token_ids) == 6
