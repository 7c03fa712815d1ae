"""Groups at once, adapted to what is seen: what raises them, what lowers them, and how far."""

import asyncio
from types import SimpleNamespace

import pytest
from arl_plan.clock import run_virtual
from arl_scale.concurrency import METRIC, Concurrency, Look, adapt
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rl.config import RolloutConfig, load_config
from agentgym_rl.controller import Buffer
from agentgym_rl.core import ConfigError, EngineError, EngineLoad
from agentgym_rl.engines import read_counters
from agentgym_rl.engines.client.client import MEASURES
from agentgym_rl.fleet import EngineLoads
from tests.kit.cases import cases

B = 4


def config(**keys):
    return RolloutConfig(
        **{"groups_per_batch": B, "max_staleness": 3, "concurrency": "adaptive"} | keys
    )


class World:
    """Looks at a run that does the same all the time, whatever the limit."""

    def __init__(self, **keys):
        self.concurrency = Concurrency(config(**keys))
        self.now = self.ended = self.stale = 0
        self.tokens = self.put_back = 0.0

    def see(self, stretches=1, *, speed=None, line=0.0, put_back=0.0, stale=0.0, **look):
        """Verdicts; `speed` of the limit: tokens a second (default: in proportion)."""
        verdicts = []
        while len(verdicts) < stretches:
            limit = self.concurrency.limit
            self.now += 1
            self.ended += 4
            self.stale += round(4 * stale)
            self.put_back += 4 * 8 * put_back
            self.tokens += speed(limit) if speed else 10.0 * limit
            load = EngineLoad(
                look.get("engines", 1), limit * 8.0, limit * 8.0 * line, self.tokens, self.put_back
            )
            seen = Look(
                self.now,
                load,
                running=look.get("running", limit),
                ended=self.ended,
                stale=self.stale,
                has_room=look.get("has_room", True),
                trainer_waits=look.get("trainer_waits", True),
                sandboxes=look.get("sandboxes", 0),
                want_sandbox=look.get("want_sandbox", 0),
            )
            if (verdict := self.concurrency.observe(seen)) is not None:
                verdicts.append(verdict)
        return verdicts


def test_from_one_group_it_doubles_to_what_the_bound_admits():
    limits = [verdict.limit for verdict in World(start_concurrent=1).see(6)]
    assert limits == [2, 4, 8, 16, 16, 16]


def test_what_max_concurrent_says_is_the_most():
    assert World(start_concurrent=1, max_concurrent=6).see(5)[-1].limit == 6


@cases(
    "look, said",
    [
        ({"trainer_waits": False}, "the trainer does not wait"),
        ({"has_room": False}, "the bound on staleness"),
        ({"line": 0.7}, "0.70 requests in line"),
        ({"put_back": 0.7}, "0.70 requests put back"),
        ({"stale": 0.25}, "25% of the groups became too old"),
        ({"sandboxes": 4, "want_sandbox": 3}, "0.75 episodes in line for each sandbox"),
    ],
)
def test_what_keeps_it_where_it_is(look, said):
    for verdict in World().see(4, **look):
        assert verdict.limit == verdict.before == 2 * B
        assert said in verdict.reason


@cases(
    "look",
    [{"line": 2.0}, {"put_back": 2.0}, {"stale": 0.5}, {"sandboxes": 4, "want_sandbox": 8}],
)
def test_too_much_twice_in_a_row_lowers_it(look):
    world = World(min_concurrent=3)
    first, second = world.see(2, **look)
    assert first.limit == first.before, "once may be an accident"
    assert second.limit < second.before == 2 * B
    assert world.see(40, **look)[-1].limit == 3


@cases("start", [1, 16, 32])
def test_a_verdict_needs_four_looks_and_as_many_groups_as_the_limit_up_to_16(start):
    world = World(start_concurrent=start, max_staleness=7)
    world.see(1, trainer_waits=False)
    assert world.now == 1 + 4  # 4 groups end between two looks
    world.see(1, trainer_waits=False)
    assert world.now == 1 + 4 + 4


def test_at_the_thresholds_themselves_it_is_neither_kept_nor_lowered():
    assert World(start_concurrent=4).see(1, line=0.5)[0].limit == 8
    assert World(start_concurrent=4).see(1, put_back=0.5)[0].limit == 8
    for much in ({"line": 1.0}, {"put_back": 1.0}):
        assert World(start_concurrent=4).see(4, **much)[-1].limit == 4


def test_pressure_that_passes_is_forgotten():
    world = World()
    for _ in range(3):
        world.see(1, line=2.0)
        world.see(1, trainer_waits=False)
    assert world.concurrency.limit == 2 * B


def test_a_limit_that_was_too_high_is_tried_again_after_twelve_stretches():
    world = World()
    assert world.see(2, line=2.0)[-1].limit == 7
    world.see(10, trainer_waits=False)
    (still,) = world.see(1)
    assert (still.limit, still.reason) == (7, "7 is the most for now")
    assert world.see(1)[0].limit == 9  # by a quarter, no longer to twice as many


def test_it_falls_to_one_and_no_further_and_rises_again():
    world = World(start_concurrent=2)
    assert [verdict.limit for verdict in world.see(4, line=2.0)] == [2, 1, 1, 1]
    assert world.see(12, trainer_waits=False)[-1].limit == 1
    assert world.see(2, line=2.0)[-1].limit == 1
    assert world.see(1)[0].limit == 2


def test_a_raise_that_gains_just_enough_is_kept():
    world = World(start_concurrent=4)
    verdicts = world.see(2, speed=lambda limit: 42.0 if limit == 8 else 40.0)  # + 5 %
    assert [verdict.limit for verdict in verdicts] == [8, 16]


def test_a_raise_is_not_judged_while_the_trainer_has_enough():
    world = World(start_concurrent=4)
    world.see(1, speed=lambda limit: 40.0)
    (satisfied,) = world.see(1, speed=lambda limit: 40.0, trainer_waits=False)
    assert (satisfied.limit, satisfied.reason) == (8, "the trainer does not wait")
    assert world.see(1, speed=lambda limit: 40.0)[0].limit == 16


def test_a_raise_without_use_is_taken_back_and_not_tried_again_at_once():
    world = World(start_concurrent=4)
    verdicts = world.see(8, speed=lambda limit: 40.0)
    assert [verdict.limit for verdict in verdicts[:3]] == [8, 8, 4]
    assert "+0% tokens/s from 4 to 8" in verdicts[2].reason
    assert all(verdict.limit < 8 for verdict in verdicts[2:])


def test_another_engine_makes_it_look_anew():
    world = World(start_concurrent=4)
    world.see(3, speed=lambda limit: 40.0)
    limits = [verdict.limit for verdict in world.see(6, engines=2)]
    assert limits[-1] == 16


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_it_never_leaves_its_bounds(data):
    least = data.draw(st.integers(1, 8))
    most = data.draw(st.integers(8, 30))
    world = World(start_concurrent=8, min_concurrent=least, max_concurrent=most)
    share = st.sampled_from([0.0, 0.3, 0.6, 2.0])
    for _ in range(10):
        speed = data.draw(st.integers(0, 50))
        world.see(
            speed=lambda limit, speed=speed: speed,
            line=data.draw(share),
            put_back=data.draw(share),
            trainer_waits=data.draw(st.booleans()),
            engines=data.draw(st.integers(1, 2)),
        )
        assert least <= world.concurrency.limit <= min(most, 4 * B)


@cases(
    "keys, said",
    [
        ({"rollout.min_concurrent": 2}, "only for concurrency 'adaptive'"),
        ({"rollout.concurrency": "adaptive", "rollout.start_concurrent": 99}, "begins with 99"),
        (
            {
                "rollout.concurrency": "adaptive",
                "rollout.min_concurrent": 9,
                "rollout.max_concurrent": 8,
            },
            "9 (min_concurrent) to 8",
        ),
    ],
)
def test_what_cannot_be_is_refused(keys, said):
    with pytest.raises(ConfigError) as error:
        load_config(None, keys)
    assert said in str(error.value)


class Loads:
    """Engines with one look in two, which then sample as fast as they are asked."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.looks = 0

    async def read(self):
        self.looks += 1
        self.buffer.running = self.buffer.limit
        self.buffer.dropped["agent_error"] += 2
        tokens = 10.0 * self.looks * self.buffer.limit
        return EngineLoad(1, 8.0, 0.0, tokens)


def test_a_run_s_limit_follows_and_is_a_metric():
    keys = {"start_concurrent": 1}

    async def main():
        buffer = Buffer(config(**keys), total_groups=1000)
        controller = SimpleNamespace(rollout_metrics={}, trainer_waits=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await adapt(config(**keys), buffer, controller, Loads(buffer))
        return buffer, controller

    buffer, controller = run_virtual(main())
    assert buffer.limit == 16 == controller.rollout_metrics[METRIC]


class Engine:
    """Says what it is told to."""

    def __init__(self, **counters):
        self.counts = counters

    async def measures(self):
        if not self.counts:
            raise EngineError("no answer")
        return dict.fromkeys(MEASURES, 0.0) | self.counts


def test_engines_are_added_up_and_counted_on_where_one_begins_again():
    one, two = Engine(running=3, tokens=50), Engine(tokens=7)
    engines = {"a": one}

    async def main():
        loads = EngineLoads(lambda: engines)
        await loads.read()
        engines["b"] = two
        found = [await loads.read()]
        one.counts["tokens"] = 60
        two.counts["tokens"] = 2  # it was started again
        found.append(await loads.read())
        one.counts.clear()
        return [*found, await loads.read()]

    first, second, third = asyncio.run(main())
    assert (first.engines, first.running, first.tokens) == (2, 3, 0)
    assert second.tokens == 12
    assert third is None, "one of them does not answer"


def test_counters_are_read():
    text = '# HELP a b\na{x="1 }",y="2"} 1.5\na{x="2"} 2e1 1690\nb 3\n'
    assert read_counters(text) == {"a": 21.5, "b": 3.0}
    with pytest.raises(ValueError, match="not Prometheus"):
        read_counters("<html>")
