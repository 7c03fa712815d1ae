"""`reward.png`, the picture that a run leaves."""

from types import SimpleNamespace

import pytest
from arl_inspect import picture
from arl_inspect.picture import Picture, plot_reward

from agentgym_rl import load_config

METRICS = {"reward/mean": 0.5, "staleness/mean": 1.25, "staleness/max": 2.0}


def finished(tmp_path, plot: bool) -> Picture:
    """The part of a run that was evaluated twice, the second time without a reward."""
    metrics = ({"eval/reward": 0.3}, {})
    records = {version: SimpleNamespace(metrics=found) for version, found in enumerate(metrics)}
    evaluations = SimpleNamespace(records=SimpleNamespace(read=lambda: records))
    return Picture(
        SimpleNamespace(
            config=load_config(None, {"logging.plot": plot}),
            run_dir=tmp_path,
            title="math",
            controller=SimpleNamespace(history=[METRICS] * 3),
            evaluations=evaluations,
        )
    )


def test_the_picture_has_every_batch_and_every_evaluation(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(picture, "plot_reward", lambda *given, **more: drawn.append((given, more)))
    finished(tmp_path, plot=True).finish()
    expected = (tmp_path / "reward.png", [METRICS] * 3)
    assert drawn == [(expected, {"title": "math", "evaluations": {0: 0.3}})]


def test_a_run_without_the_picture_leaves_none(tmp_path):
    finished(tmp_path, plot=False).finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_picture_is_a_png(tmp_path):
    path = tmp_path / "reward.png"
    plot_reward(path, [METRICS] * 3, title="math", evaluations={0: 0.3, 3: 0.9})
    assert path.read_bytes().startswith(b"\x89PNG")
