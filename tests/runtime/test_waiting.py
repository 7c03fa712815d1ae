"""Who waits for whom, link by link."""

import asyncio
import time

import pytest
from arl_plan.clock import run_virtual

from agentgym_rl.runtime import Changes
from agentgym_rl.runtime.waiting import Wait, chain, watched


async def waiting(tasks, changes: Changes, who: str, what: str, *, on: str = "") -> None:
    """`who` waits, until cancelled."""
    tasks.create_task(
        changes.wait_for(lambda: False, who=who, what=what, timeout_s=60, on=on), name=who
    )
    await asyncio.sleep(0)


def test_a_wait_that_gives_up_names_the_chain():
    async def play() -> str:
        changes = Changes()
        async with asyncio.TaskGroup() as tasks:
            await waiting(tasks, changes, "trainer rank 0", "batch 7", on="turns")
            engine = [Wait("turns", "tokens of engine-1", time.monotonic() - 40)]
            room = changes.wait_for(
                lambda: False,
                who="rollout",
                what="room under the staleness bound",
                timeout_s=0.01,
                on="trainer",
            )
            with watched(lambda: engine), pytest.raises(TimeoutError) as gave_up:
                await room
            raise Done(str(gave_up.value))

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(play())
    (done,) = caught.value.exceptions
    assert str(done) == (
        "rollout waited 0 s for room under the staleness bound: trainer rank 0 waits for batch 7 "
        "since 0 s <- turns wait for tokens of engine-1 since 40 s"
    )


class Done(Exception):
    """Ends the group."""


def test_a_circle_is_told_once_and_ends():
    now = time.monotonic()
    links = [Wait("a", "x", now, "b"), Wait("b", "y", now, "a")]
    with watched(lambda: links):
        assert [wait.who for wait in chain(links[0])] == ["a", "b", "a"]


def test_what_depends_on_nobody_stands_alone():
    alone = Wait("arl train", "the trainer to load its model", time.monotonic())
    assert chain(alone) == [alone]


def test_a_condition_that_holds_waits_for_nobody():
    async def play() -> None:
        held = Changes()
        await held.wait_for(lambda: True, who="me", what="nothing", timeout_s=0)

    asyncio.run(play())


def test_a_wait_is_reported_if_it_is_longer_than_the_last_one(caplog):
    """Nobody has to read every half minute that a large model is at work."""

    async def play() -> list[int]:
        changes, reported = Changes(), []
        for seconds in (10, 40, 70, 70, 300, 40, 20, 40):
            caplog.clear()
            over = asyncio.get_running_loop().time() + seconds
            asyncio.get_running_loop().call_at(over, changes.notify)
            await changes.wait_for(
                lambda over=over: asyncio.get_running_loop().time() >= over,
                who="arl train", what="a batch", timeout_s=1000,
            )  # fmt: skip
            reported.append(len(caplog.records))
        return reported

    with caplog.at_level("INFO"):
        assert run_virtual(play()) == [0, 1, 0, 0, 2, 0, 0, 1]
