"""Several engines as one sampler: who goes where, and turns that outlive their engine."""

import asyncio

import pytest

from agentgym_rl.core import (
    ConfigError,
    ContextLengthError,
    EngineError,
    RequestRefused,
    SamplingParams,
    derived_seed,
)
from agentgym_rl.engines import Replica, Replicas
from agentgym_rl.engines.router.router import COUNTERS
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from tests.kit.cases import cases

from .routed import PROMPT, STOP, STORY, begin, received, routed, some, tells


# ---------------------------------------------------------------------- one engine, and where to
@cases("stream", [True, False])
def test_a_turn_passes_through(stream):
    engine = ScriptedEngine(tells(stop_reason=STOP))
    engine.version = 3
    router, _ = routed(engine, version=3)
    turn = asyncio.run(received(begin(router, stream=stream)))
    assert (turn.ids, turn.finish, turn.deltas[-1].stop_reason) == (STORY, "stop", STOP)
    assert set(turn.versions) == set(turn.admitted) == {3}
    assert len(turn.deltas) == (len(STORY) if stream else 1)
    [entry] = engine.journal
    assert (entry.request_id, entry.sampling.seed) == ("r", 7)
    assert entry.cache_salt.endswith("-v3.0")
    assert not any(router.counters.values())


def test_a_session_stays_and_new_ones_go_where_least_is_in_flight():
    engines = [ScriptedEngine(tells()) for _ in range(3)]
    router, _ = routed(*engines)

    async def play():
        for session in "abcabcabc":
            await received(begin(router, session=session))

    asyncio.run(play())
    found = [{entry.session_id for entry in engine.journal} for engine in engines]
    assert found == [{"a"}, {"b"}, {"c"}]
    assert router.counters["affinity_misses"] == 0


@cases("crowd, stays", [(4, True), (5, False)])
def test_a_session_leaves_a_replica_with_more_than_twice_the_load(crowd, stays):
    home, other = ScriptedEngine(tells()), ScriptedEngine(tells())
    router, _ = routed(home)

    async def play():
        await received(begin(router))
        streams = [begin(router, session=f"other {i}") for i in range(crowd)]
        for stream in streams:
            await anext(stream)
        router.add("1", other, version=0)
        await received(begin(router))
        for stream in streams:
            await stream.aclose()

    asyncio.run(play())
    assert len(other.journal) == router.counters["affinity_misses"] == int(not stays)


def test_only_so_many_sessions_are_remembered():
    replicas = Replicas()
    for name in "ab":
        replicas.add(Replica(name, ScriptedEngine(tells()), version=0, has_spans=True))
    first, _ = replicas.choose("first")
    for session in range(10_000):
        replicas.choose(str(session))
    first.load = 99
    again, moved = replicas.choose("first")
    assert again is not first
    assert (moved, replicas.choose("9999")[0].load) == (False, 0)


# ---------------------------------------------------------------------- failures
@cases("stream", [True, False])
@cases("chunk", [1, 5])
@cases("told", [0, 1, 5, 10])
def test_a_turn_goes_on_elsewhere_token_for_token(told, chunk, stream):
    first = ScriptedEngine(tells(fail_after=told, chunk=chunk))
    second = ScriptedEngine(tells(chunk=chunk))
    router, failures = routed(first, second)
    turn = asyncio.run(received(begin(router, stream=stream)))
    [had], [rest] = first.journal, second.journal
    assert turn.ids == had.token_ids + rest.token_ids == STORY
    assert turn.logprobs == had.logprobs + rest.logprobs
    assert list(rest.prompt) == PROMPT + had.token_ids
    assert rest.sampling.max_tokens == 50 - len(had.token_ids)
    assert rest.sampling.seed == (derived_seed(7, "segment/1") if had.token_ids else 7)
    assert (rest.request_id, router.counters["failovers"]) == ("r.1", 1)
    assert [(name, str(error)) for name, error in failures] == [("0", _failure(told))]


def _failure(told):
    return f"scripted failure after {told} tokens"


def test_a_stream_that_ends_unfinished_has_failed():
    first = ScriptedEngine(lambda prompt: Say(STORY[:4], finish_reason=None))
    router, [*_] = routed(first, ScriptedEngine(tells()))
    turn = asyncio.run(received(begin(router)))
    assert (turn.ids, router.counters["failovers"]) == (STORY, 1)


@cases(
    "asked, finish",
    [({"stop_token_ids": (STORY[4],)}, "stop"), ({"max_tokens": 5}, "length")],
)
def test_a_turn_that_had_all_it_wanted_is_finished_without_its_engine(asked, finish):
    first = ScriptedEngine(lambda prompt: Say(STORY[:5], finish_reason=None))
    second = ScriptedEngine(tells())
    router, _ = routed(first, second)
    turn = asyncio.run(received(begin(router, **asked)))
    assert (turn.ids, turn.finish, second.journal) == (STORY[:5], finish, [])
    assert turn.deltas[-1].stop_reason == (STORY[4] if finish == "stop" else None)


@pytest.mark.slow
def test_failures_are_bounded_and_a_lone_engine_is_not_stormed():
    engine = ScriptedEngine(tells(fail_after=0))
    router, failures = routed(engine)
    with pytest.raises(EngineError, match="scripted failure after 0"):
        asyncio.run(received(begin(router)))
    assert len(engine.journal) == len(failures) == 6
    assert router.counters["failovers"] == 5


def test_a_lone_engine_that_recovers_finishes_the_turn():
    says = iter([Say(STORY, fail_after=5), Say(STORY[5:])])
    router, _ = routed(ScriptedEngine(lambda prompt: next(says)))
    assert asyncio.run(received(begin(router))).ids == STORY


def test_a_replica_that_just_failed_attracts_nobody():
    dead, alive = ScriptedEngine(tells(fail_after=0)), ScriptedEngine(tells())
    router, failures = routed(dead, alive)

    async def play():
        for session in range(5):
            await received(begin(router, session=str(session)))

    asyncio.run(play())
    assert (len(failures), len(alive.journal)) == (1, 5)


@cases("error", [RequestRefused("no"), ContextLengthError("full")])
def test_what_the_request_is_to_blame_for_fails_it_at_once(error):
    def refuse(prompt):
        raise error

    other = ScriptedEngine(tells())
    router, failures = routed(ScriptedEngine(refuse), other)
    with pytest.raises(type(error)):
        asyncio.run(received(begin(router)))
    assert (failures, other.journal, router.counters["failovers"]) == ([], [], 0)


def test_a_caller_that_leaves_aborts_its_request_and_nothing_has_failed():
    engine = ScriptedEngine(tells(delay_s=0.01))
    router, failures = routed(engine)

    async def leave():
        stream = begin(router)
        await some(stream, 2)
        await stream.aclose()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await received(begin(router, stream=False))

    asyncio.run(leave())
    assert [entry.aborted for entry in engine.journal] == [True, True]
    assert (failures, router._replicas.open[0].load) == ([], 0)


# ---------------------------------------------------------------------- leaving and joining
@cases("paused", [True, False])
def test_a_turn_moves_at_once_when_its_replica_is_removed(paused):
    first, second = ScriptedEngine(tells()), ScriptedEngine(tells())
    router, failures = routed(first, second)

    async def play():
        stream = begin(router)
        before = await some(stream, 4)
        if not paused:
            router.remove("0")
            return await received(stream, before)
        await first.pause(interrupt="keep")  # it says nothing more
        asyncio.get_running_loop().call_later(0.005, router.remove, "0")
        return await received(stream, before)

    turn = asyncio.run(play())
    assert (turn.ids, len(second.journal[0].prompt)) == (STORY, len(PROMPT) + 4)
    assert (first.journal[0].aborted, failures) == (True, [])
    assert router.counters["failovers"] == 1


@cases("stream", [True, False])
def test_a_deadline_of_the_caller_is_not_mistaken_for_a_removal(stream):
    engine = ScriptedEngine(tells())
    router, _ = routed(engine)

    async def play():
        await engine.pause(interrupt="keep")
        async with asyncio.timeout(0.01):
            asyncio.get_running_loop().call_later(0.01, router.remove, "0")
            await received(begin(router, stream=stream))

    with pytest.raises(TimeoutError):
        asyncio.run(play())
    assert router.counters["failovers"] == 0


def test_how_a_removed_replica_goes_down_is_no_failure():
    def dying(prompt):
        router.remove("0")
        raise EngineError("connection reset")

    router, failures = routed(ScriptedEngine(dying), ScriptedEngine(tells()))
    turn = asyncio.run(received(begin(router)))
    assert (turn.ids, failures, router.counters["failovers"]) == (STORY, [], 1)


def test_without_replicas_a_turn_waits_for_one():
    router, _ = routed(wait_s=1.0)

    async def play():
        loop = asyncio.get_running_loop()
        loop.call_later(0.02, lambda: router.add("late", ScriptedEngine(tells()), version=4))
        return await received(begin(router))

    turn = asyncio.run(play())
    assert (turn.ids, set(turn.admitted), router.counters["waits"]) == (STORY, {4}, 1)


def test_without_replicas_a_turn_gives_up_in_time():
    engine = ScriptedEngine(tells())
    router, _ = routed(engine)

    async def play():
        stream = begin(router)
        await some(stream, 4)
        router.remove("0")
        await received(stream)

    with pytest.raises(EngineError, match=r"request r waited .* \(in service: none\)"):
        asyncio.run(play())


def test_waiting_for_service_names_who_waits():
    router, _ = routed()
    with pytest.raises(TimeoutError, match="the test waited"):
        asyncio.run(router.wait_serving(who="the test", timeout_s=0.01))
    router.add("a", ScriptedEngine(tells()), version=0)
    asyncio.run(router.wait_serving(who="the test", timeout_s=0.01))
    assert router.serving == ["a"]


def test_closing_fails_what_is_in_flight_and_closes_no_engine():
    engine = ScriptedEngine(tells())
    router, _ = routed(engine, wait_s=9)

    async def play():
        stream = begin(router)
        await some(stream, 4)
        await router.close()
        with pytest.raises(EngineError, match="closed"):
            await received(stream)
        return await received(
            engine.generate(PROMPT, SamplingParams(9), request_id="", session_id="")
        )

    assert asyncio.run(play()).ids == STORY[:9]
    assert router.serving == []


def test_misuse_is_refused():
    router, _ = routed(ScriptedEngine(tells()))
    with pytest.raises(ValueError, match="in service already"):
        router.add("0", ScriptedEngine(tells()), version=0)
    with pytest.raises(ConfigError, match="use 'abort'"):
        router.add("1", ScriptedEngine(tells()), version=0, has_spans=False)
    router.remove("never was")
    router.begin_update(1)
    with pytest.raises(ValueError, match="under way is to 1"):
        router.end_update(2, ["0"])
    router.end_update(1, ["0", "has left"])
    assert set(router.counters) == set(COUNTERS)
