"""Episodes that are drawn, and those that were recorded."""

import statistics

import numpy as np
import pytest
from arl_plan.decode_steps import decode_steps, engine_rates, line, turns_of
from arl_plan.episodes import DrawnShapes, Limits, Recorded, RecordedShapes, Turn
from arl_plan.rates import LengthRates
from arl_plan.trainer import packed_once, packed_separately

from agentgym_rl.core import Outcome, Row, Trajectory

WIDE = Limits(100_000, 1_000_000)
NOTHING = np.zeros(0, np.int32)


def test_drawn_lengths_have_their_median_and_groups_of_their_own():
    rates = LengthRates(reply_tokens=500, reply_sigma=0.8, task_share=0.9)
    shapes = DrawnShapes(rates, WIDE, seed=1)
    groups = [[shapes.shape(group, m).trained for m in range(8)] for group in range(200)]
    assert statistics.median(n for group in groups for n in group) == pytest.approx(500, rel=0.2)
    within = statistics.mean(statistics.pstdev(np.log(group)) for group in groups)
    assert within < 0.5 * 0.8
    assert shapes.shape(7, 3) == shapes.shape(7, 3)


def test_limits_cut_replies_and_whole_turns():
    turns = [Turn(10, 50), Turn(70, 50), Turn(130, 50)]
    cut = Limits(20, 512).cut(turns, 1.0, tail=2)
    assert [(turn.context, turn.sampled) for turn in cut.turns] == [(10, 20), (40, 20), (70, 20)]
    assert (cut.trained, cut.tokens) == (60, 92)
    assert [turn.sampled for turn in Limits(100, 100).cut(turns, 1.0).turns] == [50, 30]


def test_recorded_groups_come_at_their_part_of_the_run():
    groups = {step: [[Recorded([Turn(5, step + 1)], 1.0, 0, NOTHING)]] for step in range(20)}
    shapes = RecordedShapes(groups, WIDE, groups_per_batch=4, steps=10, seed=1)
    early = {shapes.shape(group, 0).trained for group in range(4)}
    late = {shapes.shape(group, 0).trained for group in range(36, 40)}
    assert max(early) <= 3
    assert min(late) >= 18


def _recorded(engine: int, first: int, turns: list[range], version: int = 0) -> Trajectory:
    """An episode on an engine whose step number n ends at 0.01 n (and a bit, by engine)."""
    prompts = [4 + 2 * number for number in range(len(turns))]
    sampled = np.concatenate(
        [[False] * p + [True] * len(t) for p, t in zip(prompts, turns, strict=True)]
    )
    times = np.concatenate(
        [[0.0] * p + [_end(engine, n) for n in t] for p, t in zip(prompts, turns, strict=True)]
    )
    ids = np.concatenate(
        [[-1] * p + [i] * len(t) for i, (p, t) in enumerate(zip(prompts, turns, strict=True))]
    )
    length = len(times)
    row = Row(
        tokens=np.zeros(length, np.int32),
        loss_mask=sampled.astype(np.bool_),
        behavior_logprobs=np.zeros(length, np.float32),
        policy_versions=np.full(length, version, np.int32),
        admitted_versions=np.full(length, version, np.int32),
        temperatures=np.ones(length, np.float32),
        turn_ids=ids.astype(np.int32),
        times_s=times,
    )
    return Trajectory(f"e{first}", "g", "t", Outcome.COMPLETED, 1.0, [row], len(turns))


def _end(engine: int, step: int) -> float:
    return 100 + 0.01 * step + 0.003 * engine


def test_times_of_tokens_say_which_requests_ran_together():
    episodes = [
        _recorded(0, 0, [range(1, 40)]),
        _recorded(0, 1, [range(10, 20), range(30, 35)]),
        _recorded(1, 2, [range(1, 30)]),
    ]
    steps = decode_steps(episodes, prefix_cache=False)
    assert steps.seconds == pytest.approx(0.01)
    assert len(steps) == 38 + 28
    assert steps.requests.sum() == 38 + 28 + 10 + 5
    assert steps.prefill_tokens.tolist().count(4) == 1
    assert steps.prefill_tokens.max() == 4 + 10 + 6


def test_too_few_decode_steps_say_nothing():
    steps = decode_steps([_recorded(0, 0, [range(1, 20)])], prefix_cache=False)
    with pytest.raises(ValueError, match="18 decode steps and 0 with prefills"):
        engine_rates(steps, prefix_cache=False)


def test_lines_have_no_negative_part():
    x = np.arange(1.0, 50.0)
    assert line(x, 3 + 2 * x) == pytest.approx((3, 2))
    assert line(x, 100 - x) == pytest.approx((75, 0))
    assert line(x, 2 * x - 5) == pytest.approx((0, 1.85), rel=0.05)


def test_prefills_of_turns_and_groups_are_of_what_is_new():
    episodes = [
        _recorded(0, 0, [range(1, 5), range(10, 15)]),
        _recorded(0, 1, [range(20, 25)]),
        _recorded(0, 2, [range(30, 35)], version=1),
        _recorded(0, 3, [range(40, 45), range(50, 55)], version=1),
    ]
    whole = [tokens for _, tokens in turns_of(episodes, prefix_cache=False)]
    assert whole == [4, 4 + 4 + 6, 4, 4, 4, 4 + 5 + 6]
    new = [tokens for _, tokens in turns_of(reversed(episodes), prefix_cache=True)]
    assert new == [4, 6, 0, 4, 0, 6]


def test_rows_share_their_groups_prompt_or_what_was_recorded():
    rates = LengthRates(prompt_tokens=100, reply_tokens=50, turns=1)
    drawn = DrawnShapes(rates, WIDE, seed=1)
    rows = [drawn.shape(group, m).row(group, m) for group in range(3) for m in range(4)]
    whole = sum(map(len, rows))
    assert sum(packed_separately(rows, 100_000)) == whole
    assert packed_once(rows, 100_000) == [whole - 3 * 3 * 100]
    apart = packed_once(rows, 600)
    assert whole > sum(apart) >= whole - 3 * 3 * 100
    assert max(apart) <= 600
    tokens = np.arange(60, dtype=np.int32)
    members = [Recorded([Turn(20, 40)], 1.0, 0, tokens + 100 * (m > 1)) for m in range(4)]
    recorded = RecordedShapes({0: [members]}, WIDE, groups_per_batch=1, steps=1, seed=1)
    rows = [recorded.shape(0, m).row(0, m) for m in range(4)]
    assert packed_once(rows, 1000) == [120]
    assert packed_separately(rows, 1000) == [240]
