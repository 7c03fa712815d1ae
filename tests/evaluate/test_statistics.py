"""Means, pass@k and differences, against enumeration, textbook values and simulation."""

import math
import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl.evaluate.statistics import mean, paired_difference, pass_at, pass_at_k
from tests.kit.cases import cases


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_all_samples_of_k(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    successes = [index < c for index in range(n)]
    expected = fmean(any(sample) for sample in combinations(successes, k))
    assert pass_at_k(n, c, k) == pytest.approx(expected)


@cases("arguments", [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)])
def test_pass_at_k_of_the_impossible_is_refused(arguments):
    with pytest.raises(ValueError, match="expected c <= n"):
        pass_at_k(*arguments)


@cases(  # Wilson's interval, from the closed form in Brown, Cai & DasGupta 2001
    "passed, of, low, high",
    [(10, 10, 0.7225, 1.0), (0, 20, 0.0, 0.1611), (7, 10, 0.3968, 0.8922), (1, 4, 0.0456, 0.6994)],
)
def test_single_episodes_of_0_and_1_have_wilson_s_interval(passed, of, low, high):
    found = mean({f"t{i}": [float(i < passed)] for i in range(of)})
    assert found.value == passed / of
    assert found.ci == pytest.approx((low, high), abs=1e-4)


def test_episodes_of_one_task_are_not_independent():
    alike = mean({f"t{i}": [float(i % 2)] * 10 for i in range(20)})
    alone = mean({f"t{i}": [float(i % 2)] for i in range(20)})
    spread = mean({f"t{i}": [1.0, 0.0] * 5 for i in range(20)})
    assert alike.ci == pytest.approx(alone.ci)
    assert spread.num_tasks == 20
    assert spread.ci == alone.ci  # no spread between tasks is no proof: as many as tasks


def test_other_scores_have_the_usual_interval():
    found = mean({"a": [2.0], "b": [4.0], "c": [9.0]})
    half = 1.96 * math.sqrt(13) / math.sqrt(3)  # the sample's variance is 13
    assert found.ci == pytest.approx((5 - half, 5 + half), rel=1e-3)


def test_one_task_says_little():
    assert mean({"a": [1.0]}).ci == pytest.approx((0.207, 1.0), abs=1e-3)  # Wilson's, of one
    assert mean({"a": [0.0] * 50}).ci == pytest.approx((0.0, 0.793), abs=1e-3)
    assert mean({"a": [1.0, 0.0]}).ci == pytest.approx((0.055, 0.945), abs=1e-3)
    assert mean({"a": [7.0, 9.0]}).ci is None
    with pytest.raises(ValueError, match="no scores"):
        mean({"a": []})


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Tasks of different difficulty, four episodes each: 95 % within the noise of 400 trials."""
    rng = random.Random(7)

    def trial() -> bool:
        chances = [rng.betavariate(0.6, 0.9) for _ in range(50)]
        low, high = mean(
            {str(i): [float(rng.random() < p) for _ in range(4)] for i, p in enumerate(chances)}
        ).ci
        return low <= 0.4 <= high

    assert 0.92 <= fmean(trial() for _ in range(400)) <= 0.98


def test_pass_at_k_leaves_out_tasks_with_too_few_episodes():
    scores = {"a": [1.0, 0.0], "b": [1.0], "c": [0.5, 1.0 - 1e-12]}
    assert pass_at(scores, 2, success=1.0) == mean({"a": [1.0], "c": [1.0]})
    assert pass_at(scores, 2, success=0.5).value == 1.0
    assert pass_at(scores, 3, success=1.0) is None


def test_a_paired_difference_leaves_out_what_is_hard_for_both():
    rng = random.Random(3)
    hard = {str(i): rng.random() for i in range(40)}
    first = {task: [value] for task, value in hard.items()}
    better = {task: [value + 0.05 + 0.01 * rng.random()] for task, value in hard.items()}
    found = paired_difference(better | {"other": [9.0]}, first)
    assert found.num_tasks == 40
    assert 0.05 < found.ci[0] < found.value < found.ci[1] < 0.06
    assert paired_difference({"x": [1.0]}, first) is None
