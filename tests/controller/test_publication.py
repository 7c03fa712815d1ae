"""A version gets to the engines that exist, in the time that it may take."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from agentgym_rl.controller import publication
from agentgym_rl.core import Published, WeightsError

SERVED = Published(0.5, 0.25, {"e": (1.0, 2.0)}, {})
FAILED = Published(0.0, 0.0, {}, {"e": "e is gone", "f": "f is full"})


class Scene:
    """Engines that exist after some looks, and a trainer that needs some seconds for each result;
    time passes only here."""

    def __init__(self, monkeypatch, *results: Published, looks: int = 1, takes_s: float = 4.0):
        self.now, self.looks, self.results, self.takes_s = 100.0, looks, [*results], takes_s
        self.given: list[tuple[dict[str, str], float]] = []
        self.swaps: list[tuple[object, ...]] = []
        self.ended: list[tuple[int, list[str], dict[str, str]]] = []
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(publication, "time", clock)
        asynchronous = SimpleNamespace(sleep=self.sleep, shield=asyncio.shield)
        monkeypatch.setattr(publication, "asyncio", asynchronous)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    async def begin_publication(self, version: int) -> dict[str, str]:
        assert version == 7
        self.looks -= 1
        return {} if self.looks > 0 else {"e": "http://e"}

    async def end_publication(self, version, *, served, failed) -> None:
        await asyncio.sleep(0)
        self.ended.append((version, list(served), dict(failed)))

    async def begin_swap(self, version: int, lives) -> None:
        self.swaps.append(("begin", version, *lives))

    def end_swap(self, version: int, *, served, failed) -> None:
        self.swaps.append(("end", version, *served, *failed))

    async def give(self, engines, timeout_s: float) -> Published:
        self.given.append((dict(engines), timeout_s))
        self.now += self.takes_s
        return self.results.pop(0)

    async def swap(self, engines) -> Published:
        self.swaps.append(("swap", 7, *engines))
        return self.results.pop(0)

    def publish(self, *, wait_s: float, timeout_s: float) -> Published:
        its = {"wait_s": wait_s, "timeout_s": timeout_s}
        return asyncio.run(publication.publish(self, 7, self.give, self.swap, **its))


def test_the_engines_that_serve_it_are_in_service(monkeypatch):
    scene = Scene(monkeypatch, SERVED)
    assert scene.publish(wait_s=0.0, timeout_s=5.0) is SERVED
    assert scene.given == [({"e": "http://e"}, 5.0)]
    assert scene.ended == [(7, ["e"], {})]


def test_the_fleet_knows_of_each_swap_before_it_begins_and_after_its_end(monkeypatch):
    staged = Published(0.5, 0.5, {"same": (0.0, 0.0)}, {"d": "d is gone"}, [["e", "f"], ["g"]])
    first = Published(0.25, 0.0, {"e": (1.0, 2.0)}, {"f": "f is full"})
    scene = Scene(monkeypatch, staged, first, Published(0.25, 0.0, {"g": (3.0, 4.0)}, {}))
    done = scene.publish(wait_s=0.0, timeout_s=5.0)
    steps = [("begin", "e", "f"), ("swap", "e", "f"), ("end", "e", "f")]
    steps += [(step, "g") for step in ("begin", "swap", "end")]
    assert scene.swaps == [(step, 7, *names) for step, *names in steps]
    assert scene.ended == [(7, ["same", "e", "g"], {"d": "d is gone", "f": "f is full"})]
    assert (done.seconds, done.stage_s, done.pause_s, done.waves) == (1.0, 0.5, 1.0, [])


def test_it_waits_for_an_engine_as_long_as_it_may(monkeypatch):
    pause_s = publication._PAUSE_S
    assert Scene(monkeypatch, SERVED, looks=4).publish(wait_s=3 * pause_s, timeout_s=1) is SERVED
    scene = Scene(monkeypatch, SERVED, looks=999)
    with pytest.raises(WeightsError, match="no engine was there to take policy version 7 within 2"):
        scene.publish(wait_s=2.0, timeout_s=9.0)
    assert scene.now == pytest.approx(102 + pause_s, abs=pause_s)
    assert scene.given == []
    assert Scene(monkeypatch, SERVED, looks=2).publish(wait_s=0.0, timeout_s=1) is SERVED


def test_it_tries_again_in_the_time_that_is_left(monkeypatch, caplog):
    scene = Scene(monkeypatch, FAILED, SERVED)
    assert scene.publish(wait_s=0.0, timeout_s=10.0) is SERVED
    left_s = 10 - 4 - publication._BETWEEN_TRIES_S
    assert [timeout_s for _, timeout_s in scene.given] == pytest.approx([10, left_s])
    assert scene.ended == [(7, [], FAILED.failed), (7, ["e"], {})]
    assert "no engine took policy version 7: e is gone; f is full; trying again" in caplog.text


def test_it_gives_up_when_its_time_is_over(monkeypatch):
    scene = Scene(monkeypatch, FAILED, FAILED, SERVED)
    with pytest.raises(WeightsError, match=r"version 7: e is gone; f is full$"):
        scene.publish(wait_s=0.0, timeout_s=8.0)
    assert len(scene.given) == 2
    assert len(scene.ended) == 2
    little_s = 4.0 + publication._BETWEEN_TRIES_S + 0.5
    assert Scene(monkeypatch, FAILED, SERVED).publish(wait_s=0.0, timeout_s=little_s) is SERVED
    monkeypatch.setattr(publication, "_BETWEEN_TRIES_S", 0.25)
    with pytest.raises(WeightsError):
        Scene(monkeypatch, FAILED, SERVED).publish(wait_s=0.0, timeout_s=4.25)


def test_the_waits_for_engines_are_counted_together(monkeypatch):
    """Of 2 s the first wait needs one; the second one has the rest."""
    scene = Scene(monkeypatch, FAILED, SERVED, looks=51)

    async def gives(engines, timeout_s: float) -> Published:
        scene.looks = 99
        return FAILED

    scene.give = gives
    with pytest.raises(WeightsError, match=r"no engine was there .* within 1 s"):
        scene.publish(wait_s=2.0, timeout_s=1000.0)


def test_failed_engines_are_ended_even_if_the_publication_is_cancelled(monkeypatch):
    scene = Scene(monkeypatch, FAILED)
    ending, go_on = asyncio.Event(), asyncio.Event()
    end = scene.end_publication

    async def slow(version, **results) -> None:
        ending.set()
        await go_on.wait()
        await end(version, **results)

    scene.end_publication = slow

    async def play() -> None:
        its = {"wait_s": 0.0, "timeout_s": 9.0}
        task = asyncio.create_task(publication.publish(scene, 7, scene.give, scene.swap, **its))
        await ending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(play())
    assert scene.ended == [(7, [], FAILED.failed)]
