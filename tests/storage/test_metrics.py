"""Numbers of a run."""

import math
from contextlib import closing

import numpy as np
import pytest

from agentgym_rl.core import Outcome, StorageError, Trajectory
from agentgym_rl.storage import MetricsFile, PhasesFile, StepPhases, read_phases
from agentgym_rl.storage.metrics import read_metrics
from agentgym_rl.storage.overlap import Overlap
from agentgym_rl.storage.phases import PHASES


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


def test_overlap_counts_both_ends_of_an_interval_and_forgets_none(row):
    overlap = Overlap()
    overlap.add_intervals([("critic", 20.0, 21.0), ("optimizer", 10.0, 11.0)])
    overlap.add_intervals([("values", 30.0, 31.0), ("publish", 40.0, 50.0)])
    stamps = [10.0, 11.0, 11.5, 20.5, 31.0, 45.0]
    assert overlap.add_episodes([episode(row, stamps)]) == 4 / 6
    assert overlap.add_episodes([episode(row, [30.5, 31.5])]) == 1 / 2
    assert overlap.add_episodes([episode(row, [5.0, 9.5])]) == 0
    assert overlap.share == 5 / 10
