"""What a person sees of a run."""

import re

from agentgym_rl.inspect.plot import plot_reward
from agentgym_rl.inspect.progress import make_progress, sparkline

METRICS = {
    "reward/mean": 0.5,
    "staleness/mean": 1.25,
    "staleness/max": 2.0,
    "throughput/generated_tokens_per_s": 1234.0,
    "throughput/trained_tokens_per_s": 999.0,
    "overlap": float("nan"),
}


def test_plain_lines_fit_80_columns(capsys):
    progress = make_progress("plain", total_steps=100)
    progress.phase("training")
    progress.evaluating(10, 10)
    for step in (0, 99):
        progress.step(step, METRICS)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert re.search(r"step 100/100 +reward 0\.50 +stale 1\.2/2", lines[3])


def test_auto_is_plain_without_a_terminal(capsys):
    make_progress("auto", total_steps=1).phase("hello")
    assert capsys.readouterr().err.endswith("hello\n")


def test_the_live_view_shows_and_closes(capsys):
    progress = make_progress("rich", total_steps=3)
    for step in range(3):
        progress.step(step, METRICS)
    progress.close()
    shown = capsys.readouterr().err
    assert "staleness" in shown
    assert "step 3 of 3" in shown


def test_none_shows_nothing(capsys):
    make_progress("none", total_steps=1).step(0, METRICS)
    assert capsys.readouterr() == ("", "")


def test_sparkline_spans_its_range():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([]) == ""


def test_the_picture_is_a_png(tmp_path):
    path = tmp_path / "reward.png"
    plot_reward(path, [METRICS] * 3, title="math", evaluations={0: 0.3, 3: 0.9})
    assert path.read_bytes().startswith(b"\x89PNG")
