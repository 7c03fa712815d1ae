"""Cache salts: a request shares cached KV with requests of its own policy version only."""

import asyncio

import pytest
from arl_plan.clock import run_virtual

from agentgym_rl.engines.scripted import Say, ScriptedEngine

from .routed import STORY, begin, received, routed, tells


def test_only_a_replica_that_swaps_gives_up_its_cached_kv():
    """Its neighbours share the KV of the old version until they swap, and of the new one after."""
    engines = [ScriptedEngine(tells()) for _ in range(2)]
    router, _ = routed(*engines)

    async def turns(number):
        for name in ("0", "1"):
            await received(begin(router, request=f"{name} {number}", session=name))

    async def play():
        await turns(0)
        for wave in ("0", "1"):
            router.begin_update(1, [wave])
            await turns(f"while {wave} swaps")
            router.end_update(1, [wave])
        await turns(1)

    asyncio.run(play())
    salts = [[it.cache_salt.split("-")[-1] for it in engine.journal] for engine in engines]
    assert [salts[0][0], *salts[0][2:]] == ["v0.0", "v1.0", "v1.0"]
    assert [*salts[1][:2], salts[1][3]] == ["v0.0", "v0.0", "v1.0"]
    assert {*salts[0]} & {*salts[1]} == {"v0.0", "v1.0"}  # their own ones are of one request


def test_a_version_that_others_publish_again_shares_no_kv_with_the_first():
    """Ranks that replace lost ones publish other weights under the same number."""
    engine = ScriptedEngine(tells())
    router, _ = routed(engine)

    async def play():
        for incarnation in (0, 0, 1):
            router.begin_update(1)
            router.end_update(1, ["0"], incarnation=incarnation)
            await received(begin(router))

    asyncio.run(play())
    assert [it.cache_salt.split("-")[-1] for it in engine.journal] == ["v1.0", "v1.0", "v1.1"]


def test_a_swap_that_was_given_up_leaves_the_version_uncertain_until_the_next_one():
    engines = [ScriptedEngine(tells()) for _ in range(2)]
    router, _ = routed(*engines)

    async def play():
        router.begin_update(1, ["0"])  # and the ranks are lost
        router.begin_update(1, ["1"])
        router.end_update(1, ["1"], incarnation=1)
        await received(begin(router, session="0"))
        router.begin_update(1, ["0"])
        router.end_update(1, ["0"], incarnation=1)
        await received(begin(router, session="0", request="later"))

    asyncio.run(play())
    salts = [it.cache_salt.split("-")[-1] for it in engines[0].journal]
    assert [salt[0] for salt in salts] == ["r", "v"]


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
    assert [salt.split("-")[-1] for salt in (salts[0], salts[6])] == ["v0.0", "v2.0"]
    assert len(set(salts)) == 6
    assert all(len(salt) <= 128 and not set(salt) & set("@/\\\0") for salt in salts)


def test_every_segment_sent_during_an_update_has_a_salt_of_its_own():
    says = iter([Say(STORY[:5], "abort"), Say(STORY[5:])])
    engine = ScriptedEngine(lambda prompt: next(says))
    router, _ = routed(engine, interrupt="abort")
    router.begin_update(1, ["0"])
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
    assert engine.journal[0].cache_salt.endswith("-v0.0-mine")


def test_two_runs_share_no_kv_on_the_same_engine():
    """Their versions have the same numbers, and a server that outlives a run keeps its cache."""
    engine = ScriptedEngine(tells())
    for _ in range(2):
        asyncio.run(received(begin(routed(engine)[0])))
    assert len({entry.cache_salt for entry in engine.journal}) == 2


def test_a_request_waits_for_the_end_of_a_swap_and_then_shares_kv():
    engine = ScriptedEngine(tells())
    router, _ = routed(engine)

    async def play():
        router.begin_update(1)
        turn = asyncio.create_task(received(begin(router)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not engine.journal
        router.end_update(1, ["0"])
        assert {*(await turn).admitted} == {1}

    run_virtual(play())  # the wait must not end while a busy machine does something else
    assert engine.journal[0].cache_salt.endswith("-v1.0")


def test_the_requests_of_a_long_swap_wait_together_and_only_once():
    engine = ScriptedEngine(tells())
    router, _ = routed(engine)

    async def play():
        clock = asyncio.get_running_loop().time
        for version in (1, 2):
            router.begin_update(version)
            start, took_s = clock(), list[float]()
            for number in range(3):
                await received(begin(router, request=f"{version} {number}"))
                took_s.append(clock() - start)
            assert took_s == [pytest.approx(0.5)] * 3
            router.end_update(version, ["0"])

    run_virtual(play())
    assert len({entry.cache_salt for entry in engine.journal}) == 6


def test_no_request_waits_where_salts_are_left_out():
    router, _ = routed(ScriptedEngine(tells()), salt="none")

    async def play():
        clock = asyncio.get_running_loop().time
        router.begin_update(1)
        start = clock()
        await received(begin(router))
        assert clock() == start

    run_virtual(play())
