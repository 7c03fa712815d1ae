"""The warnings about a run's metrics."""

import logging
import math

from arl_meters.metric_warnings import MetricWarnings

from agentgym_rl import Config
from agentgym_rl.core import load_extension
from agentgym_rl.run.parts import RECEIVERS
from tests.kit.cases import cases

LEARNED = (
    (0.34, 0.19),
    (0.33, 0.16),
    (0.16, 0.41),
    (0.09, 0.59),
    (0.02, 0.8),
    (0.07, 0.84),
    (0.01, 0.8),
)
"""Entropies and rewards as of the bundled model on tools, which learns, and then varies."""


@cases(
    "batches, warning",
    [
        (LEARNED, ""),
        ([(1.08, 0.1), (1.0, 0.1), (0.9, 0.1), (0.8, 0.1), (0.7, 0.1)], ""),
        ([(1.08, 0.1), (0.04, 0.0), (0.03, 0.0)], "entropy went from 1.1 to 0.04 since step 0"),
        ([(1.0, 0.5), (0.6, 0.5), (0.15, 0.5)], "the reward did not rise"),
        ([(0.06, 0.9), (0.26, 0.98), (0.07, 0.94), (0.046, 0.86)], ""),  # one batch was a spike
        ([(0.3, 0.6), (6.0, 0.0)], "the reward fell"),
        ([(0.3, 0.6, 0.1), (0.3, 0.6, 0.7)], "differ by 0.7 nats"),
        ([(math.nan, 0.5), (math.nan, 0.5)], ""),
        # where a fall of the entropy begins to count: from 0.2, below a fifth, without more reward
        ([(0.25, 0.5), (0.04, 0.5)], "the reward did not rise (0.5 to 0.5)"),
        ([(0.25, 0.5), (0.05, 0.5)], ""),
        ([(0.19, 0.5), (0.01, 0.5)], ""),
        ([(0.25, 0.5), (0.04, 0.51)], ""),
        # and a rise: above three times and above one more, with less reward
        ([(0.25, 0.5), (1.3, 0.4)], "the reward fell (0.5 to 0.4)"),
        ([(0.25, 0.5), (1.25, 0.4)], ""),
        ([(0.25, 0.5), (1.3, 0.5)], ""),
        ([(1.0, 0.5), (2.9, 0.4)], ""),
        ([(1.0, 0.5), (3.1, 0.4)], "the reward fell"),
        ([(0.3, 0.6, 0.5), (0.3, 0.6, 0.4)], ""),
        ([(0.3, 0.6, 0.51)], "differ by 0.51 nats"),
    ],
    ids=range(19),
)
def test_a_broken_policy_is_warned_of_once(batches, warning, caplog):
    watch = MetricWarnings()
    names = ("policy/approx_entropy", "reward/mean", "mismatch/mean_abs")
    with caplog.at_level(logging.WARNING):
        for step, values in enumerate(batches):
            watch.log(step, dict(zip(names, values, strict=False)) | {"lr": 3e-4})
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(warning)
    assert not said or (warning in said[0] and "trainer.learning_rate (it is 0.0003" in said[0])


WELL = {
    "reward/mean": 0.5,
    "episode/turns": 2.0,
    "episode/length_turns": 0.0,
    "episode/overflows": 0.0,
    "policy/approx_entropy": 0.3,
    "policy/approx_kl": 0.01,
    "policy/clip_fraction": 0.03,
    "policy/behavior_weight_masked": 0.001,
    "mismatch/sampling_importance_ratio": 1.01,
    "lr": 3e-5,
}
"""The metrics of a batch that is well."""


@cases(
    "changed, warning",
    [
        ({}, ""),
        ({"episode/length_turns": 0.2}, ""),
        ({"episode/length_turns": 0.5}, "25% of the replies were cut at rollout.max_tokens"),
        ({"episode/length_turns": math.nan, "episode/turns": 0.0}, ""),
        ({"episode/overflows": 0.5}, "raise engine.max_model_len"),
        ({"policy/approx_entropy": 0.004}, "the policy says the same every time"),
        ({"policy/approx_kl": 50.0}, "policy/approx_kl 50, usually below 0.06"),
        ({"policy/clip_fraction": 0.4}, "lower trainer.learning_rate"),
        ({"policy/behavior_weight_masked": 0.5}, "rollout.max_staleness"),
        ({"mismatch/sampling_importance_ratio": 0.3}, "sampling_importance_ratio 0.3"),
        ({"mismatch/sampling_importance_ratio": math.nan}, ""),
        # the bounds themselves are usual
        ({"policy/approx_kl": 1.0, "policy/behavior_weight_masked": 0.0}, ""),
        ({"policy/clip_fraction": 0.25, "mismatch/sampling_importance_ratio": 0.75}, ""),
        ({"policy/approx_kl": 1.001}, "policy/approx_kl 1, usually"),
        ({"policy/behavior_weight_masked": -0.001}, "behavior_weight_masked -0.001"),
        ({"episode/overflows": 0.1875, "episode/length_turns": 0.5, "episode/turns": 2.5}, ""),
        ({"policy/approx_entropy": 0.01}, ""),
        ({"policy/approx_entropy": 0.004, "episode/turns": 0.0}, "the policy says the same"),
    ],
    ids=range(18),
)
def test_trouble_is_warned_of_once_and_for_several_batches(changed, warning, caplog):
    watch = MetricWarnings()
    with caplog.at_level(logging.WARNING):
        watch.log(0, WELL | changed)
        watch.log(1, WELL | changed)
        assert caplog.records == []
        for step in range(2, 9):
            watch.log(step, WELL | changed)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(warning)
    assert not said or (said[0].startswith("steps 0 to 2: ") and warning in said[0])


def test_a_policy_that_is_sure_because_it_learned_is_no_trouble(caplog):
    watch = MetricWarnings()
    for step in range(9):
        watch.log(step, WELL | {"policy/approx_entropy": 0.004, "reward/mean": 0.1 * step})
    assert caplog.records == []


def test_several_kinds_of_trouble_are_each_told(caplog):
    watch = MetricWarnings()
    for step in range(9):
        watch.log(step, WELL | {"episode/length_turns": 2.0, "policy/approx_kl": 9.0})
    assert len(caplog.records) == 2


def test_only_the_last_batches_are_judged_and_the_first_reward_counts(caplog):
    """Three batches with cut replies, among others without: their mean is above the share."""
    watch = MetricWarnings()
    cut = WELL | {"episode/length_turns": 1.0}
    for step in range(4):
        watch.log(step, WELL)
    watch.log(4, cut)
    assert caplog.records == []  # a sixth
    watch.log(5, cut)
    assert caplog.records[0].getMessage().startswith("steps 3 to 5: 33% of the replies")


def test_a_reward_that_is_unknown_at_first_is_that_of_the_next_batch(caplog):
    watch = MetricWarnings()
    sure = WELL | {"policy/approx_entropy": 0.004}
    for step, reward in enumerate([math.nan, 0.5, 0.6, 0.7]):
        watch.log(step, sure | {"reward/mean": reward})
    assert caplog.records == []


def test_a_run_opens_them_and_they_leave_out_evaluations(caplog, tmp_path):
    watch = load_extension(RECEIVERS, "metric-warnings")(Config(), tmp_path)
    cut = WELL | {"episode/length_turns": 2.0}
    for step in range(3):
        assert caplog.records == []
        watch.log(step, {"eval/reward": 0.5, "eval/version": float(step)})
        watch.log(step, cut)
    watch.close()
    assert caplog.records[0].getMessage().startswith("steps 0 to 2: 100% of the replies")
