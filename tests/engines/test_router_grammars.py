"""Constrained turns, and turns of a router of whole ones: whole from one engine, or begun again."""

import asyncio

from agentgym_rl.engines.scripted import Say, ScriptedEngine
from tests.kit.cases import cases

from .routed import PROMPT, STORY, begin, received, received_while, routed, tells

GRAMMAR = 'start: "a"'


@cases("stream", [True, False])
def test_a_turn_whose_engine_fails_begins_again_elsewhere(stream):
    first = ScriptedEngine([Say([1] * 9, fail_after=5)])
    second = ScriptedEngine(tells())
    router, failures = routed(first, second)
    turn = asyncio.run(received(begin(router, stream=stream, grammar=GRAMMAR)))
    assert (turn.ids, turn.finish) == (STORY, "stop")
    assert len(failures) == 1
    [entry] = second.journal
    assert entry.prompt == tuple(PROMPT)
    assert (entry.sampling.max_tokens, entry.sampling.grammar) == (50, GRAMMAR)
    counted = {name: count for name, count in router.counters.items() if count}
    assert counted == {
        **{"failovers": 1, "turn_restarts": 1, "affinity_misses": 1},
        "discarded_tokens": 5,
    }


@cases("stream", [True, False])
@cases("told", [0, 5, 10])
def test_whole_turns_begin_again_with_the_seed_they_had(told, stream):
    first, second = ScriptedEngine([Say([1] * 11, fail_after=told)]), ScriptedEngine(tells())
    router, _ = routed(first, second, whole_turns=True)
    turn = asyncio.run(received(begin(router, stream=stream)))
    assert (turn.ids, turn.finish) == (STORY, "stop")
    [entry] = second.journal
    assert (entry.prompt, entry.sampling.seed) == (tuple(PROMPT), 7)
    assert router.counters["turn_restarts"] == bool(told)


def test_nothing_of_it_is_shown_before_it_is_whole():
    engine = ScriptedEngine([Say(STORY, delay_s=0.002), Say(STORY)])
    router, _ = routed(engine, interrupt="abort")
    seen = []

    async def listen(stream):
        async for delta in stream:
            seen.append(len(engine.journal))
            yield delta

    async def interrupt():
        await asyncio.sleep(0.01)
        await engine.pause(interrupt="abort")
        engine.version = 1
        await engine.resume()

    async def play():
        return await received_while(listen(begin(router, grammar=GRAMMAR)), interrupt())

    turn = asyncio.run(play())
    assert turn.ids == STORY
    assert set(seen) == {2}
    assert set(turn.versions) == {1}
    assert engine.journal[1].prompt == tuple(PROMPT)


def test_a_turn_that_had_all_but_the_word_for_it_is_whole():
    router, _ = routed(ScriptedEngine([Say(STORY, finish_reason=None)]))
    turn = asyncio.run(received(begin(router, grammar=GRAMMAR)))
    assert (turn.ids, turn.finish) == (STORY, "stop")
    assert router.counters["turn_restarts"] == 0
