"""What every engine promises of replies under way while it is paused, updated or asleep."""

from __future__ import annotations

import asyncio
from typing import get_args

import numpy as np
import pytest

from agentgym_rl.core import EngineError, Interrupt, SamplingParams, WeightsError
from agentgym_rl.weights import write_version
from tests.contracts.test_engine import EXACT, PROMPT, collect, joined
from tests.kit.cases import cases
from tests.kit.versions import part_of
from tests.vllm.plain import weights_of

INTERRUPTS = get_args(Interrupt)
APART = 10 * EXACT
"""The least difference that one wrong label makes in a reply's log-probs."""
HOT = 2.0
"""A temperature at which hardly a token is so likely that two versions agree on it (vLLM allows
at most 2)."""


async def _under_way(play, engine, tasks, name="early"):
    """A long reply that has begun and is far from its end."""
    started = asyncio.Event()

    async def follow():
        deltas = []
        params = SamplingParams(max_tokens=play.member.long, temperature=0)
        call = engine.generate(PROMPT, params, request_id=name, session_id="s", stream=True)
        async for delta in call:
            deltas.append(delta)
            if sum(len(delta.token_ids) for delta in deltas) >= 3:
                started.set()
        return joined(deltas)

    job = tasks.create_task(follow())
    await started.wait()
    return job


def _file(folder, version, *, of=0):
    """The weights of policy `of` as a file of `version`."""
    return str(write_version(folder, version, weights_of(of)))


@pytest.mark.slow
@cases("interrupt", INTERRUPTS)
def test_no_interrupt_loses_a_token_or_a_version(play, tmp_path, interrupt):
    """The new weights are the old ones, so that nothing but the interrupt tells the replies."""
    play.member.needs(interrupt)
    length = play.member.long

    async def scenario(engine):
        calm = joined(await collect(engine, max_tokens=length, temperature=0, name="calm"))
        async with asyncio.TaskGroup() as tasks:
            early = await _under_way(play, engine, tasks)
            await engine.pause(interrupt=interrupt)
            late = tasks.create_task(collect(engine, name="late"))
            await asyncio.sleep(0.05)
            assert not late.done()
            await engine.update_weights(_file(tmp_path, 4), version=4)
            await engine.resume()
        return calm, early.result(), joined(late.result()), (await engine.info()).version

    calm, early, late, served = play(scenario)
    _check_interrupted(calm, early, interrupt, updated={0, 4})
    assert late.versions == [4] * 6
    assert served == 4


def _check_interrupted(calm, early, interrupt, *, updated):
    assert len(early.token_ids) == len(early.versions)
    assert early.versions == sorted(early.versions)
    assert set(early.versions) == (updated if interrupt in ("keep", "recompute") else {0})
    assert early.finish_reason == ("abort" if interrupt == "abort" else "length")
    cut = interrupt == "abort"
    assert (len(early.token_ids) < len(calm.token_ids)) == cut
    assert early.token_ids[:40] == calm.token_ids[: min(40, len(early.token_ids))]


UPDATES = 3


@pytest.mark.slow
@cases("interrupt", INTERRUPTS)
def test_every_token_is_of_the_version_it_is_labelled_with(play, forward, tmp_path, interrupt):
    """Updates while requests are in flight; each token is audited, and each boundary."""
    play.member.needs("model", interrupt)
    weights = {version: weights_of(version) for version in range(UPDATES + 1)}
    asked = [[5 + n, 80, 33, 210] for n in range(3)]
    replies = play(lambda engine: _updated(play, engine, asked, weights, tmp_path, interrupt))
    spanning = 0
    for prompt, reply in zip(asked, replies, strict=True):
        assert len(reply.versions) == len(reply.token_ids)
        assert reply.versions == sorted(reply.versions)
        spanning += len(set(reply.versions)) > 1
        audit = _audit_kept if interrupt == "keep" else _audit
        audit(forward, weights, prompt, reply)
    assert spanning == (3 if interrupt in ("keep", "recompute") else 0)


async def _updated(play, engine, asked, weights, folder, interrupt):
    """The replies to `asked`, with the updates while they run; in mode keep only one."""
    started = [asyncio.Event() for _ in asked]

    async def follow(number, prompt):
        deltas = []
        params = SamplingParams(max_tokens=play.member.long, temperature=HOT)
        names = {"request_id": f"r{number}", "session_id": "s"}
        async for delta in engine.generate(prompt, params, stream=True, **names):
            deltas.append(delta)
            if sum(len(delta.token_ids) for delta in deltas) >= 3:
                started[number].set()
        return joined(deltas)

    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(follow(n, prompt)) for n, prompt in enumerate(asked)]
        for event in started:
            await event.wait()
        for version in range(1, 2 if interrupt == "keep" else UPDATES + 1):
            await play.member.publish(
                engine, folder, weights[version], version=version, interrupt=interrupt
            )
    return [job.result() for job in jobs]


def _audit(forward, weights, prompt, reply):
    """Each token against a plain forward of its version; labels a token off would be seen."""
    labels, reported = np.array(reply.versions), np.array(reply.logprobs)
    plain = {}
    for version in set(reply.versions):
        forward.load(weights[version])
        found = forward.logprobs(prompt, reply.token_ids, temperature=HOT)
        plain[version] = np.abs(found - reported)

    def worst(labels: np.ndarray) -> float:
        return max(plain[version][labels == version].max() for version in set(labels.tolist()))

    assert worst(labels) < EXACT
    if len(plain) > 1:
        late, early = [*labels[:1], *labels[:-1]], [*labels[1:], *labels[-1:]]
        assert min(worst(np.array(late)), worst(np.array(early))) > APART


def _audit_kept(forward, weights, prompt, reply):
    """The tokens before the update against a plain forward, those after it on the old KV."""
    boundary = reply.versions.index(1)
    args = (weights[0], weights[1], prompt, reply.token_ids)
    reported = np.array(reply.logprobs)

    def worst(cut: int) -> float:
        return np.abs(forward.replayed(*args, cut, temperature=HOT) - reported).max()

    assert worst(boundary) < EXACT
    assert min(worst(boundary - 1), worst(boundary + 1)) > APART


@pytest.mark.slow
@cases("interrupt", INTERRUPTS)
def test_a_request_that_comes_during_a_pause_waits_and_is_of_the_new_version(
    play, forward, tmp_path, interrupt
):
    play.member.needs(interrupt)

    async def scenario(engine):
        await engine.pause(interrupt=interrupt)
        async with asyncio.TaskGroup() as tasks:
            late = [
                tasks.create_task(collect(engine, name=f"late {n}", stream=n > 1, max_tokens=20))
                for n in range(4)
            ]
            await asyncio.sleep(0.1)
            assert not any(job.done() for job in late)
            await engine.update_weights(_file(tmp_path, 2, of=2), version=2)
            await engine.resume()
        return [joined(job.result()) for job in late]

    replies = play(scenario)
    assert all(reply.versions == [2] * 20 for reply in replies)
    if play.member.can("model"):
        forward.load(weights_of(2))
        for reply in replies:
            want = forward.logprobs(PROMPT, reply.token_ids)
            assert reply.logprobs == pytest.approx(want, abs=EXACT)


@pytest.mark.slow
def test_a_new_salt_reads_no_kv_of_older_weights(play, forward, tmp_path):
    """After an update that keeps the KV, even with a beginning that was asked for before."""
    play.member.needs("model", "keep")
    prompt = list(range(10, 410))

    async def scenario(engine):
        await collect(engine, prompt, salt="0.0")
        await play.member.publish(engine, tmp_path, weights_of(3), version=3, interrupt="keep")
        return joined(await collect(engine, prompt, name="b", salt="0.3", max_tokens=20))

    reply = play(scenario)
    assert set(reply.versions) == {3}
    forward.load(weights_of(3))
    want = forward.logprobs(prompt, reply.token_ids)
    assert reply.logprobs == pytest.approx(want, abs=EXACT)


@pytest.mark.slow
@cases("first", INTERRUPTS)
def test_pauses_may_follow_each_other(play, first):
    play.member.needs(first)
    if first == "recompute":
        play.member.needs("after_recompute")
    modes = [second for second in INTERRUPTS if play.member.can(second)]

    async def scenario(engine):
        return [await _paused_twice(play, engine, first, second) for second in modes]

    for second, (early, late) in zip(modes, play(scenario), strict=True):
        assert len(early.token_ids) == len(early.versions) <= play.member.long
        assert early.finish_reason in ("abort", "length")
        assert len(late.token_ids) == len(late.versions)
        ends = {(6, "length")}
        if second == "abort" and not play.member.can("held"):
            ends.add((0, "abort"))  # if it had arrived by then
        assert (len(late.token_ids), late.finish_reason) in ends


async def _paused_twice(play, engine, first, second):
    """A reply under way, and one that came between two pauses."""
    async with asyncio.TaskGroup() as tasks:
        early = await _under_way(play, engine, tasks, f"early {second}")
        await engine.pause(interrupt=first)
        late = tasks.create_task(collect(engine, name=f"late {second}"))
        await asyncio.sleep(0.02)
        await engine.pause(interrupt=second)
        await engine.pause(interrupt=second)
        if {first, second} & {"abort", "wait"}:
            await early
        if second != "abort" or play.member.can("held"):
            assert not late.done()
        await engine.resume()
        await engine.resume()
    return early.result(), joined(late.result())


def test_a_resume_ends_a_wait_which_says_so(play):
    play.member.needs("wait", "told_waits")

    async def scenario(engine):
        async with asyncio.TaskGroup() as tasks:
            early = await _under_way(play, engine, tasks)
            wait = tasks.create_task(_refused_wait(engine))
            while not wait.done():  # the first resume may come before the pause
                await asyncio.sleep(0.01)
                await engine.resume()
            await wait
            assert not early.done()
            await collect(engine, name="late")
        return early.result()

    assert len(play(scenario).token_ids) == play.member.long


async def _refused_wait(engine):
    with pytest.raises(EngineError, match="a resume or another pause came before"):
        await engine.pause(interrupt="wait")


def test_a_new_name_is_stamped_from_the_next_token_on(play):
    play.member.needs("names")

    async def scenario(engine):
        async with asyncio.TaskGroup() as tasks:
            early = await _under_way(play, engine, tasks)
            await engine.name_version(7)
            late = await collect(engine, name="late")
        return early.result(), joined(late), (await engine.info()).version

    early, late, served = play(scenario)
    assert (early.versions[0], early.versions[-1], served) == (0, 7, 7)
    assert early.versions == sorted(early.versions)
    assert set(late.versions) == {7}


DAMAGED = {
    "cut off": lambda data: data[:1000],
    "one byte": lambda data: data[:-7] + bytes([data[-7] ^ 64]) + data[-6:],
}


@cases("damage", DAMAGED)
def test_a_bad_file_leaves_version_and_weights_as_they_were(play, forward, tmp_path, damage):
    play.member.needs("bad_files", *(["sums"] if damage == "one byte" else []))
    path = write_version(tmp_path, 4, weights_of(4))
    part = part_of(path)
    part.write_bytes(DAMAGED[damage](part.read_bytes()))

    async def scenario(engine):
        for bad in (path, tmp_path / "nowhere"):
            with pytest.raises(WeightsError):
                await engine.update_weights(str(bad), version=4)
        return joined(await collect(engine, max_tokens=20)), (await engine.info()).version

    reply, served = play(scenario)
    assert served == 0
    assert set(reply.versions) == {0}
    forward.load(weights_of(0))
    want = forward.logprobs(PROMPT, reply.token_ids)
    assert reply.logprobs == pytest.approx(want, abs=EXACT)


def test_closing_the_iterator_aborts(play):
    async def scenario(engine):
        params = SamplingParams(max_tokens=play.member.long)
        call = engine.generate(PROMPT, params, request_id="a", session_id="a", stream=True)
        await anext(call)
        await call.aclose()
        if play.member.can("counters"):
            async with asyncio.timeout(60):
                while (await engine.measures())["running"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        else:
            await engine.pause(interrupt="wait")  # for nothing: the request is gone
            await engine.resume()
        return await collect(engine, name="b")

    assert joined(play(scenario)).finish_reason == "length"


# ------------------------------------------------------------------ sleep
@cases("level", [1, 2])
def test_a_sleep_loses_no_token_and_no_request(play, tmp_path, level):
    play.member.needs("sleep")

    async def scenario(engine):
        calm = joined(
            await collect(engine, max_tokens=play.member.long, temperature=0, name="calm")
        )
        async with asyncio.TaskGroup() as tasks:
            early = await _under_way(play, engine, tasks)
            await engine.sleep(level=level)
            await engine.sleep(level=level)  # nothing more
            late = tasks.create_task(collect(engine, name="late"))
            await asyncio.sleep(0.05)
            assert await engine.is_sleeping()
            await engine.wake_up("weights")
            await engine.update_weights(_file(tmp_path, 4), version=4)
            await asyncio.sleep(0.05)
            assert await engine.is_sleeping()
            assert not late.done()
            await engine.wake_up("kv_cache")
            assert not await engine.is_sleeping()
        return calm, early.result(), joined(late.result())

    calm, early, late = play(scenario)
    _check_interrupted(calm, early, "recompute", updated={0, 4})
    assert late.versions == [4] * 6


def test_the_weights_of_a_light_sleeper_are_its_own(play):
    play.member.needs("sleep")

    async def scenario(engine):
        before = joined(await collect(engine, temperature=0, name="before"))
        await engine.sleep(level=1)
        await engine.wake_up()
        return before, joined(await collect(engine, temperature=0, name="after"))

    before, after = play(scenario)
    assert (before.token_ids, before.versions) == (after.token_ids, after.versions)


def test_no_resume_wakes_a_sleeper(play):
    play.member.needs("sleep", "deep_sleep")

    async def scenario(engine):
        async with asyncio.TaskGroup() as tasks:
            await engine.sleep(level=1)
            late = tasks.create_task(collect(engine))
            with pytest.raises(EngineError, match="sleeps"):
                await engine.resume()
            await asyncio.sleep(0.02)
            assert not late.done()
            await engine.wake_up()

    play(scenario)


def test_who_forgot_its_weights_stays_asleep_until_there_are_others(play, tmp_path):
    play.member.needs("sleep", "deep_sleep")
    path = _file(tmp_path, 4)

    async def scenario(engine):
        await engine.sleep(level=2)
        with pytest.raises(EngineError, match="were dropped"):
            await engine.wake_up()
        with pytest.raises(WeightsError, match="sleeps"):
            await engine.update_weights(path, version=4)
        await engine.wake_up("weights")
        with pytest.raises(EngineError, match="were dropped"):
            await engine.wake_up("kv_cache")
        await engine.update_weights(path, version=4)
        await engine.wake_up("kv_cache")
        return joined(await collect(engine))

    assert play(scenario).versions == [4] * 6
