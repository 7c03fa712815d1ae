"""Rates of engines of which only the arrival of tokens is known."""

import random
from dataclasses import replace

import numpy as np
import pytest
from arl_plan.decode_steps import arrival_rates, arrived_turns

from agentgym_rl.core import Outcome, Row, Trajectory

STEP_S, EACH_S, PREFILL_S = 0.01, 0.002, 0.03


def _episode(number: int, prompt: int, times: list[float]) -> Trajectory:
    """One turn whose tokens arrive at `times`."""
    length = prompt + len(times)
    sampled = np.arange(length) >= prompt
    row = Row(
        tokens=np.zeros(length, np.int32),
        loss_mask=sampled,
        behavior_logprobs=np.zeros(length, np.float32),
        policy_versions=np.zeros(length, np.int32),
        admitted_versions=np.zeros(length, np.int32),
        temperatures=np.ones(length, np.float32),
        turn_ids=np.where(sampled, 0, -1).astype(np.int32),
        times_s=np.concatenate([np.zeros(prompt), times]),
    )
    return Trajectory(f"e{number}", "g", "t", Outcome.COMPLETED, 1.0, [row], 1)


def _served(num_turns: int = 400, seed: int = 0) -> list[Trajectory]:
    """What an engine of these rates does with requests that come at random: a first token alone,
    the others in fours, as vLLM sends them."""
    source = random.Random(seed)
    waiting = [(source.uniform(0, 60), source.randint(6, 40)) for _ in range(num_turns)]
    waiting.sort(reverse=True)
    now, running, done = 0.0, [], []
    while waiting or running:
        if not running:
            now = max(now, waiting[-1][0])
        joined = []
        while waiting and waiting[-1][0] <= now:
            joined.append((waiting.pop()[1], []))
        running += joined
        now += STEP_S + EACH_S * len(running) + PREFILL_S * len(joined)
        for _, times in running:
            times.append(now)
        done += [turn for turn in running if len(turn[1]) == turn[0]]
        running = [turn for turn in running if len(turn[1]) < turn[0]]
    return [
        _episode(number, 5, [_sent(times, place) for place in range(len(times))])
        for number, (_, times) in enumerate(done)
    ]


def _sent(times: list[float], place: int) -> float:
    """When the token came: with the last one of its four."""
    return times[min(-(-place // 4) * 4, len(times) - 1)]


def test_the_rates_of_an_engine_are_found_from_whole_turns():
    turns = arrived_turns(_served(), prefix_cache=False, num_servers=1)
    rates, speed = arrival_rates(turns, np.zeros(len(turns)), prefix_cache=False)
    assert speed == 1.0
    assert rates.step_s == pytest.approx(STEP_S, rel=0.15)
    assert rates.step_s_per_request == pytest.approx(EACH_S, rel=0.15)
    prefill_s = rates.prefill_s + 5 * rates.prefill_s_per_token  # all prompts are of 5 tokens
    assert prefill_s == pytest.approx(PREFILL_S, rel=0.15)


def test_how_much_a_trainer_slows_it_down_is_found_with_them():
    turns = arrived_turns(_served(), prefix_cache=False, num_servers=1)
    alone, _ = arrival_rates(turns, np.zeros(len(turns)), prefix_cache=False)
    computing = np.random.default_rng(0).uniform(0, 1, len(turns))
    slower = replace(turns, seconds=turns.seconds / (1 - 0.6 * computing))
    rates, speed = arrival_rates(slower, computing, prefix_cache=False)
    assert speed == pytest.approx(0.4, abs=0.06)
    assert rates.step_s == pytest.approx(alone.step_s, rel=0.25)


def test_what_ran_at_the_same_time_is_counted():
    episodes = [
        _episode(0, 5, [1.0, 2.0, 3.0, 4.0, 5.0]),
        _episode(1, 7, [3.0, 3.5, 4.0, 4.5]),
        _episode(2, 9, [9.0, 9.5]),  # too short to say anything
    ]
    turns = arrived_turns(episodes, prefix_cache=False, num_servers=1)
    assert turns.steps.tolist() == [4, 3]
    assert turns.seconds.tolist() == [4.0, 1.5]
    assert turns.requests.tolist() == pytest.approx([4 * 5.5 / 4, 3 * 2])
    assert turns.prefills.tolist() == [1, 0]
    assert turns.prefill_tokens.tolist() == [7, 0]


def test_two_engines_share_what_ran_at_the_same_time():
    one = arrived_turns(_served(40), prefix_cache=False, num_servers=1)
    two = arrived_turns(_served(40), prefix_cache=False, num_servers=2)
    assert two.requests.tolist() == pytest.approx((one.requests / 2).tolist())
    assert two.prefills.tolist() == pytest.approx((one.prefills / 2).tolist())


def test_no_rate_is_negative():
    turns = arrived_turns(_served(60), prefix_cache=False, num_servers=1)
    longest_alone = replace(turns, seconds=turns.steps / turns.requests)
    rates, _ = arrival_rates(longest_alone, np.zeros(len(turns)), prefix_cache=True)
    assert min(rates.step_s, rates.step_s_per_request, rates.prefill_s) == 0  # or it had raised


def test_too_few_turns_say_nothing():
    turns = arrived_turns(_served(5), prefix_cache=False, num_servers=1)
    with pytest.raises(ValueError, match=r"5 turns of 4 tokens or more; 30 are needed"):
        arrival_rates(turns, np.zeros(len(turns)), prefix_cache=False)
