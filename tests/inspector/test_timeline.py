"""The trace of a run: slices as long as what happened, rows without overlaps, files as they are."""

import json
from dataclasses import replace

import numpy as np
import pytest
from arl_inspect.timeline import ENGINES, ROLLOUT, TRAINER, Lanes, Sampled, events

from agentgym_rl.cli import main as cli
from agentgym_rl.core import ConfigError, Outcome, Row, Trajectory
from agentgym_rl.storage import PhasesFile, StepPhases, read_phases
from agentgym_rl.storage.phases import PHASES

STEPS = [
    StepPhases(0, [("rollout_wait", 100.0, 100.5), ("forward_backward", 100.5, 101.0)]),
    StepPhases(
        1,
        [("rollout_wait", 101.0, 101.25)],
        {"trainer-1": [("proximal", 101.25, 101.5)], "engine-0#1": [("pause", 101.5, 101.75)]},
    ),
]


def episode(name: str, turns: list[tuple[float, float]], versions=(0, 1)) -> Trajectory:
    """Of two tokens a turn, each after a prompt token."""
    length = 3 * len(turns)
    sampled = np.tile([False, True, True], len(turns))
    row = Row(
        tokens=np.arange(length, dtype=np.int32),
        loss_mask=sampled,
        behavior_logprobs=np.zeros(length, np.float32),
        policy_versions=np.tile([-1, *versions], len(turns)).astype(np.int32),
        admitted_versions=np.tile([-1, *versions], len(turns)).astype(np.int32),
        temperatures=sampled.astype(np.float32),
        turn_ids=np.where(sampled, np.repeat(np.arange(len(turns)), 3), -1).astype(np.int32),
        times_s=np.array([t for start, end in turns for t in (0.0, start, end)]),
    )
    return Trajectory(name, "group", "task-1", Outcome.COMPLETED, 0.5, [row], len(turns))


def sampled(*args) -> Sampled:
    found = Sampled.of(episode(*args))
    assert found is not None
    return found


def slices(*episodes: Sampled) -> list[dict]:
    return [dict(event) for event in events(STEPS, episodes) if event["ph"] == "X"]


def test_phases_and_turns_are_slices_of_their_length():
    found = slices(sampled("e", [(100.25, 100.5), (101.0, 103.0)]))
    trainer = [(s["name"], s["ts"], s["dur"], s["args"]) for s in found if s["pid"] == TRAINER]
    assert trainer == [
        ("rollout_wait", 0, 500_000, {"step": 0}),
        ("forward_backward", 500_000, 500_000, {"step": 0}),
        ("rollout_wait", 1_000_000, 250_000, {"step": 1}),
        ("proximal", 1_250_000, 250_000, {"step": 1}),
    ]
    engines = [(s["name"], s["ts"], s["dur"]) for s in found if s["pid"] == ENGINES]
    assert engines == [("pause", 1_500_000, 250_000)]
    rollout = [(s["name"], s["ts"], s["dur"]) for s in found if s["pid"] == ROLLOUT]
    assert rollout == [
        ("task-1", 250_000, 2_750_000),
        ("turn 0", 250_000, 250_000),
        ("turn 1", 1_000_000, 2_000_000),
    ]
    assert found[-1]["args"] == {"tokens": 2, "versions": [0, 1]}
    assert found[-3]["args"]["reward"] == 0.5


def test_every_process_has_a_row_of_its_name():
    named = [event for event in events(STEPS, []) if event["ph"] == "M"]
    rows = [(event["pid"], event["args"]["name"]) for event in named]
    assert rows == [
        (TRAINER, "trainer"),
        (TRAINER, "rank 0"),
        (TRAINER, "rank 1"),
        (ENGINES, "engines"),
        (ENGINES, "engine-0#1"),
        (ROLLOUT, "rollout: episodes, from first to last token"),
    ]


def test_turns_that_are_sampled_at_once_are_counted():
    episodes = [sampled("a", [(101.0, 104.0)]), sampled("b", [(102.0, 103.0), (105.0, 106.0)])]
    counts = [
        (event["ts"], event["args"]["turns"])
        for event in events(STEPS, episodes)
        if event["ph"] == "C"
    ]
    assert counts == [(1e6, 1), (2e6, 2), (3e6, 1), (4e6, 0), (5e6, 1), (6e6, 0)]


def test_what_comes_first_is_time_0():
    assert min(s["ts"] for s in slices(sampled("e", [(99.0, 100.0)]))) == 0


def test_episodes_at_once_have_rows_of_their_own():
    a, b, c = sampled("a", [(1.0, 3.0)]), sampled("b", [(2.0, 5.0)]), sampled("c", [(3.0, 4.0)])
    rows = {s["args"]["episode"]: s["tid"] for s in slices(c, b, a) if "episode" in s["args"]}
    assert rows == {"a": 0, "b": 1, "c": 0}


def test_lanes_are_as_few_as_ran_at_once():
    lanes, rng = Lanes(), np.random.default_rng(0)
    starts = np.sort(rng.random(200))
    spans = list(zip(starts, starts + rng.random(200) / 9, strict=True))
    rows = [lanes.take(*span) for span in spans]
    at_once = max(sum(a <= start < b for a, b in spans) for start in starts)
    assert len(set(rows)) == at_once


def test_an_episode_that_sampled_nothing_has_no_slice():
    assert Sampled.of(replace(episode("e", []), rows=[])) is None
    assert Sampled.of(episode("e", [])) is None


def test_phases_are_read_but_for_a_line_cut_short(tmp_path):
    file = PhasesFile(tmp_path)
    for step in STEPS:
        file.write(step)
    file.close()
    whole = (tmp_path / PHASES).read_text()
    assert list(read_phases(tmp_path)) == STEPS
    (tmp_path / PHASES).write_text(whole[:-5])
    assert list(read_phases(tmp_path)) == STEPS[:1]
    file = PhasesFile(tmp_path)  # the run goes on
    file.write(STEPS[1])
    file.close()
    assert list(read_phases(tmp_path)) == STEPS
    (tmp_path / PHASES).write_text('{"step": 0, "phases": 7}\n')
    with pytest.raises(ConfigError, match="a line that is no step"):
        list(read_phases(tmp_path))


def test_a_folder_without_a_run_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["timeline", "--json", str(tmp_path)])
    assert end.value.code == 2
    assert "not a run folder" in json.loads(capsys.readouterr().out)["error"]["message"]
