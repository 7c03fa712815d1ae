"""Numbers of a run."""

import logging
import math
from contextlib import closing

import numpy as np
import pytest

from agentgym_rl.core import Outcome, StorageError, Trajectory
from agentgym_rl.storage import MetricsFile, PhasesFile, StepPhases, read_phases
from agentgym_rl.storage.metric_warnings import MetricWarnings
from agentgym_rl.storage.metrics import read_metrics
from agentgym_rl.storage.overlap import Overlap
from agentgym_rl.storage.phases import PHASES
from tests.kit.cases import cases


def episode(row, times: list[float]) -> Trajectory:
    made = row([0] * len(times))
    made.times_s[-len(times) :] = np.array(times)
    return Trajectory("e", "g", "t", Outcome.COMPLETED, 0.0, [made])


def test_overlap_counts_tokens_inside_compute_phases(row):
    overlap = Overlap()
    overlap.add_intervals(
        [("optimizer", 12.0, 13.0), ("proximal", 10.0, 11.0), ("weight_sync", 13.0, 20.0)]
    )
    share = overlap.add_episodes([episode(row, [9.0, 10.5, 11.5, 12.5, 15.0])])
    assert share == overlap.share == 2 / 5


def test_overlap_before_any_training_is_zero(row):
    overlap = Overlap()
    assert overlap.share == 0.0
    assert overlap.add_episodes([episode(row, [1.0])]) == 0.0
    assert math.isnan(overlap.add_episodes([]))


def test_metrics_file_survives_a_cut_last_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(0, {"loss": 1.0, "overlap": math.nan})
    file.close()
    path.write_text(path.read_text() + '{"step": 1, "lo')
    assert read_metrics(path) == [{"step": 0, "loss": 1.0, "overlap": None}]


def test_phases_go_on_after_a_cut_last_line(tmp_path):
    path = tmp_path / PHASES
    steps = [StepPhases(step, [("optimizer", 0.0, 1.0)]) for step in range(2)]
    with closing(PhasesFile(tmp_path)) as file:
        file.write(steps[0])
    path.write_text(path.read_text() + '{"step": 1, "pha')
    with closing(PhasesFile(tmp_path)) as file:
        file.write(steps[1])
    assert [found.step for found in read_phases(tmp_path)] == [0, 1]


def test_a_full_disk_is_said_with_the_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    with (
        closing(MetricsFile(path)) as file,
        pytest.raises(StorageError, match=r"metrics\.jsonl cannot be written: .*No space left"),
    ):
        file.write(0, {"loss": 1.0})


def test_a_rewound_file_goes_on_after_what_it_keeps(tmp_path):
    with closing(MetricsFile(tmp_path / "metrics.jsonl")) as file:
        for step in range(3):
            file.write(step, {"loss": float(step)})
        file.rewind([{"loss": 0.0}])
        file.write(1, {"loss": 7.0})
    kept = read_metrics(tmp_path / "metrics.jsonl")
    assert kept == [{"step": 0, "loss": 0.0}, {"step": 1, "loss": 7.0}]


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
            watch.step(step, dict(zip(names, values, strict=False)) | {"lr": 3e-4})
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
        watch.step(0, WELL | changed)
        watch.step(1, WELL | changed)
        assert caplog.records == []
        for step in range(2, 9):
            watch.step(step, WELL | changed)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(warning)
    assert not said or (said[0].startswith("steps 0 to 2: ") and warning in said[0])


def test_a_policy_that_is_sure_because_it_learned_is_no_trouble(caplog):
    watch = MetricWarnings()
    for step in range(9):
        watch.step(step, WELL | {"policy/approx_entropy": 0.004, "reward/mean": 0.1 * step})
    assert caplog.records == []


def test_several_kinds_of_trouble_are_each_told(caplog):
    watch = MetricWarnings()
    for step in range(9):
        watch.step(step, WELL | {"episode/length_turns": 2.0, "policy/approx_kl": 9.0})
    assert len(caplog.records) == 2


def test_only_the_last_batches_are_judged_and_the_first_reward_counts(caplog):
    """Three batches with cut replies, among others without: their mean is above the share."""
    watch = MetricWarnings()
    cut = WELL | {"episode/length_turns": 1.0}
    for step in range(4):
        watch.step(step, WELL)
    watch.step(4, cut)
    assert caplog.records == []  # a sixth
    watch.step(5, cut)
    assert caplog.records[0].getMessage().startswith("steps 3 to 5: 33% of the replies")


def test_a_reward_that_is_unknown_at_first_is_that_of_the_next_batch(caplog):
    watch = MetricWarnings()
    sure = WELL | {"policy/approx_entropy": 0.004}
    for step, reward in enumerate([math.nan, 0.5, 0.6, 0.7]):
        watch.step(step, sure | {"reward/mean": reward})
    assert caplog.records == []


def test_overlap_counts_both_ends_of_an_interval_and_forgets_none(row):
    overlap = Overlap()
    overlap.add_intervals([("critic", 20.0, 21.0), ("optimizer", 10.0, 11.0)])
    overlap.add_intervals([("values", 30.0, 31.0), ("publish", 40.0, 50.0)])
    stamps = [10.0, 11.0, 11.5, 20.5, 31.0, 45.0]
    assert overlap.add_episodes([episode(row, stamps)]) == 4 / 6
    assert overlap.add_episodes([episode(row, [30.5, 31.5])]) == 1 / 2
    assert overlap.add_episodes([episode(row, [5.0, 9.5])]) == 0
    assert overlap.share == 5 / 10
