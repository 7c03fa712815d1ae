"""Cache salts: a request shares cached KV with requests of its own policy version only."""

import asyncio

from agentgym_rl.engines.scripted import Say, ScriptedEngine

from .routed import STORY, begin, received, routed, tells


def test_requests_share_kv_with_their_own_version_only():
    engine = ScriptedEngine(tells())
    router, _ = routed(engine)

    async def play():
        for step in (1, 2):
            await received(begin(router, request=f"calm {step}"))
            router.begin_update(step)
            for number in range(2):
                await received(begin(router, request=f"update {step} {number}"))
            router.end_update(step, ["0"] if step == 2 else [])
        await received(begin(router))

    asyncio.run(play())
    salts = [entry.cache_salt for entry in engine.journal]
    assert salts[0] == salts[3]
    assert [salt.split("-")[-1] for salt in (salts[0], salts[6])] == ["v0", "v2"]
    assert len(set(salts)) == 6
    assert all(len(salt) <= 128 and not set(salt) & set("@/\\\0") for salt in salts)


def test_every_segment_sent_during_an_update_has_a_salt_of_its_own():
    says = iter([Say(STORY[:5], "abort"), Say(STORY[5:])])
    engine = ScriptedEngine(lambda prompt: next(says))
    router, _ = routed(engine, interrupt="abort")
    router.begin_update(1)
    asyncio.run(received(begin(router)))
    assert len({entry.cache_salt for entry in engine.journal}) == 2


def test_salts_can_be_left_out():
    engine = ScriptedEngine(tells())
    router, _ = routed(engine, salt="none")
    asyncio.run(received(begin(router)))
    router.begin_update(1)
    asyncio.run(received(begin(router)))
    assert [entry.cache_salt for entry in engine.journal] == ["", ""]


def test_a_callers_salt_stays_apart_too():
    engine = ScriptedEngine(tells())
    router, _ = routed(engine)
    asyncio.run(received(begin(router, cache_salt="mine")))
    assert engine.journal[0].cache_salt.endswith("-v0-mine")


def test_two_runs_share_no_kv_on_the_same_engine():
    """Their versions have the same numbers, and a server that outlives a run keeps its cache."""
    engine = ScriptedEngine(tells())
    for _ in range(2):
        asyncio.run(received(begin(routed(engine)[0])))
    assert len({entry.cache_salt for entry in engine.journal}) == 2
