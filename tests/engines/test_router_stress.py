"""Many turns while engines die, leave, join and change weights: every token is accounted for."""

import asyncio
from collections import defaultdict
from contextlib import aclosing
from itertools import pairwise
from random import Random

import pytest
from arl_plan.clock import run_virtual

from agentgym_rl.core import UNKNOWN_VERSION, EngineError, SamplingParams
from agentgym_rl.engines import Router
from agentgym_rl.engines.scripted import Say, ScriptedEngine
from tests.kit.cases import cases

from .routed import received

pytestmark = pytest.mark.slow

STOP = 999_999


def story(prompt):
    """What follows the first three tokens, which are a session, a turn, and nothing."""
    session, turn = prompt[:2]
    length = 20 + (session * 7 + turn * 5) % 70
    return [*(1000 * session + 100 * turn + at for at in range(length)), STOP]


class Remote(ScriptedEngine):
    """An engine at the end of a slow wire, with a prefix cache; it can die.

    `clean` says of each sampled token whether the KV it stands on is of its own version alone, and
    of the same weights if its request shares KV with those that had the same number.
    """

    def __init__(self, plan, version, *, has_spans, interrupt):
        pace = {"delay_s": plan.uniform(0.0005, 0.003), "chunk": plan.choice([1, 1, 3])}
        super().__init__(
            lambda prompt: Say(story(prompt)[len(prompt) - 3 :], **pace),
            has_spans=has_spans,
            versions_at_end=plan.random() < 0.5,
        )
        self.version, self.incarnation = version
        self.has_spans, self.dead = has_spans, False
        self.clean = defaultdict(list)
        self._plan, self._keeps = plan, interrupt == "keep"
        self._cached = defaultdict(set)
        self._under = {}

    async def generate(self, token_ids, sampling, **options):
        await asyncio.sleep(self._plan.uniform(0.0, 0.006))
        if self.dead:
            raise EngineError("connection refused")
        async with aclosing(super().generate(token_ids, sampling, **options)) as stream:
            async for delta in stream:
                yield delta

    def _sample(self, say, entry, start):
        if self.dead:
            raise EngineError("connection lost")
        cached = self._cached[entry.cache_salt]
        weights = self.version, self.incarnation
        under = self._under.setdefault(entry.request_id, {*cached, weights})
        under.add(weights)
        cached.add(weights)
        delta = super()._sample(say, entry, start)
        shares = entry.cache_salt.endswith(f"v{self.version}.{self.incarnation}")
        clean = {version for version, _ in under} == {self.version}
        clean &= not shares or under == {weights}
        self.clean[entry.request_id] += [clean] * len(delta.token_ids)
        return delta


class Upheaval:
    """Three engines behind a router, and all that can happen to them, as `seed` has it."""

    def __init__(self, seed, interrupt):
        self.plan, self.interrupt = Random(seed), interrupt
        self.version = self.incarnation = self.given_up = 0
        self.router = Router(interrupt=interrupt, wait_s=20.0)
        self.engines = []
        self._serving = {}
        self._updating = False
        self._deaths_left = 5  # as many as every turn survives, whatever its luck
        for _ in range(3):
            self._join()

    def _join(self):
        has_spans = self.interrupt != "abort" or self.plan.random() < 0.5
        how = {"has_spans": has_spans, "interrupt": self.interrupt}
        served = self.version, self.incarnation
        engine = Remote(self.plan, served, **how)
        name = f"engine {self.plan.randrange(3)} of {len(self.engines)}"
        self.engines.append(engine)
        self._serving[name] = engine
        its = {"version": self.version, "incarnation": self.incarnation}
        self.router.add(name, engine, **its, has_spans=has_spans)

    def _leave(self, name):
        self._serving.pop(name, None)
        self.router.remove(name)

    async def losses(self):
        """Engines die and are found out, or are just removed; others take their place."""
        while True:
            await asyncio.sleep(self.plan.uniform(0.01, 0.04))
            if self._serving:
                name = self.plan.choice([*self._serving])
                self._serving[name].dead = self.plan.random() < 0.6 and self._deaths_left > 0
                self._deaths_left -= self._serving[name].dead
                await asyncio.sleep(self.plan.uniform(0.0, 0.005))
                self._leave(name)
            while len(self._serving) < 3 and not self._updating:
                self._join()

    async def updates(self):
        """Versions are published; some engines do not take them, and are removed. Some
        publications are given up, and others publish the same number."""
        incarnation = 0
        while True:
            await asyncio.sleep(self.plan.uniform(0.0, 0.02))
            self._updating = True
            await asyncio.sleep(self.plan.uniform(0.0, 0.01))  # they stage
            waves = [[name] for name in self._serving]
            self.plan.shuffle(waves)
            if self.plan.random() < 0.3:
                waves = [[name for wave in waves for name in wave]]
            done = [await self._swap(wave, incarnation) for wave in waves]
            if all(done):
                self.version, self.incarnation = self.version + 1, incarnation
                self._updating = False
            else:
                self.given_up += 1
                incarnation += 1

    async def _swap(self, names, incarnation):
        """Swap some engines, side by side; False: it was given up before its end."""
        self.router.begin_update(self.version + 1, names)
        await asyncio.sleep(self.plan.uniform(0.0, 0.005))
        taken = await asyncio.gather(*(self._takes(name, incarnation) for name in names))
        certain = self.version >= 3 and not self.given_up  # one is, whatever the timing
        if self.plan.random() < 0.1 or certain:
            return False
        for name, takes in zip(names, taken, strict=True):
            if not takes:
                self._leave(name)
        self.router.end_update(self.version + 1, names, incarnation=incarnation)
        return True

    async def _takes(self, name, incarnation):
        engine = self._serving.get(name)
        if engine is None or self.plan.random() < 0.1:
            return False
        await engine.pause(interrupt=self.interrupt)
        await asyncio.sleep(self.plan.uniform(0.0, 0.003))
        await engine.update_weights("", version=self.version + 1)
        engine.incarnation = incarnation
        await engine.resume()
        await asyncio.sleep(self.plan.uniform(0.0, 0.003))
        return True

    async def session(self, number, turns):
        for turn in range(6):
            prompt = [number, turn, 0]
            turns[f"s{number}-{turn}"] = (
                prompt,
                await received(
                    self.router.generate(
                        prompt,
                        SamplingParams(100, seed=number, stop_token_ids=(STOP,)),
                        request_id=f"s{number}-{turn}",
                        session_id=f"s{number}",
                        stream=self.plan.random() < 0.5,
                    )
                ),
            )

    async def run(self, sessions):
        """Play; returns prompt and outcome of each turn, by request id."""
        turns = {}
        async with asyncio.TaskGroup() as tasks:
            upsets = [tasks.create_task(self.losses()), tasks.create_task(self.updates())]
            async with asyncio.TaskGroup() as players:
                for number in range(sessions):
                    players.create_task(self.session(number, turns))
            for task in upsets:
                task.cancel()
        return turns

    def segments(self, request_id):
        """Who sampled a turn, in order: engine and journal entry."""
        found = {
            int(entry.request_id.partition(".")[2] or 0): (engine, entry)
            for engine in self.engines
            for entry in engine.journal
            if entry.request_id.partition(".")[0] == request_id
        }
        return [found[number] for number in sorted(found)]


def check(turn, prompt, segments):
    """Every token of the turn is what an engine sampled, by the version that did."""
    assert turn.ids == story(prompt)
    starts = [len(entry.prompt) - len(prompt) for _, entry in segments] + [len(turn.ids)]
    for (engine, entry), (start, end) in zip(segments, pairwise(starts), strict=True):
        span, kept = slice(start, end), end - start
        assert turn.ids[span] == entry.token_ids[:kept]
        assert turn.logprobs[span] == entry.logprobs[:kept]
        assert kept == len(entry.token_ids) or not engine.has_spans
        said, admitted = turn.versions[span], turn.admitted[span]
        clean = engine.clean[entry.request_id]
        for at, version in enumerate(said):
            assert version in (entry.versions[at], UNKNOWN_VERSION)
            assert clean[at] or version != admitted[at]


@cases("interrupt", ["keep", "abort"])
@cases("seed", range(4))
def test_every_token_of_every_turn_is_accounted_for(seed, interrupt):
    upheaval = Upheaval(seed, interrupt)
    turns = run_virtual(upheaval.run(sessions=40))
    for request_id, (prompt, turn) in turns.items():
        check(turn, prompt, upheaval.segments(request_id))
    versions = [version for _, turn in turns.values() for version in turn.versions]
    counters = upheaval.router.counters
    assert (len(turns), min(counters["failovers"], upheaval.version) > 9) == (240, True)
    assert upheaval.given_up > 0
    assert counters["unknown_version_tokens"] == versions.count(UNKNOWN_VERSION)
    assert all(replica.load == 0 for replica in upheaval.router._replicas.open)
