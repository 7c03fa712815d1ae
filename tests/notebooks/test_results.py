"""What results show of themselves: a line, a table, a figure, a data frame."""

import builtins
from collections import Counter
from dataclasses import fields

import pytest
from arl_notebook import frames, view
from arl_notebook.charts import curve_figure, curve_svg

from agentgym_rl import ConfigError
from agentgym_rl.core import Outcome, Trajectory
from agentgym_rl.core.extensions import register_extension
from agentgym_rl.evaluate import EvalResult
from agentgym_rl.run import TrainResult


def trained(**given) -> TrainResult:
    held_out = {"eval/reward": 0.6, "eval/reward_low": 0.5, "eval/reward_high": 0.7}
    values = {
        **{field.name: 0 for field in fields(TrainResult)},
        "state": "stopped",
        "steps": 3,
        "run": "runs/mine",
        "evaluations": [{"version": 0, "eval/reward": 0.2}, {"version": 3, **held_out}],
        "eval_before": 0.2,
    }
    return TrainResult(**values | given)


def episode(name: str, **metrics: float) -> Trajectory:
    said = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    return Trajectory(name, "g", "t", Outcome.COMPLETED, 1.0, [], 1, metrics, messages=said)


def evaluated(*played: Trajectory) -> EvalResult:
    values = {field.name: 0 for field in fields(EvalResult)} | {
        "reward": 0.5,
        "reward_ci": (0.4, 0.6),
        "num_tasks": 2,
        "pass_at": {},
        "versions": (3,),
        "rewards": {"0 a": (0.0, 1.0), "1 b": (0.5,)},
        "name": "bundled/math",
        "played": played,
    }
    return EvalResult(**values)


def test_both_results_have_a_short_line_and_the_same_attributes():
    of_run, of_model = trained(), evaluated()
    line = "TrainResult(runs/mine: stopped, 3 steps, held-out reward 0.600 [0.500, 0.700])"
    assert repr(of_run) == line
    assert repr(of_model) == (
        "EvalResult(bundled/math: 2 tasks, held-out reward 0.500 [0.400, 0.600])"
    )
    for result in (of_run, of_model):
        assert isinstance(result.reward, float)
        assert result.reward_ci
        assert (result.steps, type(result.num_episodes)) == (3, int)
        assert {"plot", "episodes", "name", "state"} <= set(dir(result))
    assert trained(evaluations=[]).reward is None
    assert "not evaluated" in repr(trained(evaluations=[]))


def test_a_notebook_shows_a_table_and_what_it_shows_is_escaped():
    html = trained(run="runs/<b>")._repr_html_()
    assert html.startswith("<table><tr><th>name</th><td>&lt;b&gt;</td></tr>")
    assert "held-out reward 0.600 [0.500, 0.700]" in html
    assert "<td>2</td>" in evaluated()._repr_html_()


def test_an_attribute_that_nobody_adds_is_an_attribute_error():
    assert not hasattr(trained(), "plto")
    assert not hasattr(trained(), "_ipython_display_")


def test_another_package_adds_an_attribute(monkeypatch):
    monkeypatch.setattr("agentgym_rl.core.extensions._registered", {})
    register_extension("results", "cost", lambda result: result.steps * 2)
    assert trained().cost == evaluated().cost == 6


def test_episodes_are_rows_of_a_data_frame():
    found = evaluated(episode("e0", tool_calls=2.0), episode("e1", right=1.0)).episodes
    assert list(found.index) == ["e0", "e1"]
    assert list(found["question"]) == ["2 + 2?"] * 2
    assert (found["answer"]["e1"], found["tool_calls"]["e0"]) == ("4", 2.0)
    assert Counter(found["right"].isna()) == {True: 1, False: 1}


def test_without_pandas_the_attribute_alone_fails_with_the_remedy(monkeypatch):
    imported = builtins.__import__

    def no_pandas(name, *rest, **options):
        if name == "pandas":
            raise ImportError(name)
        return imported(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", no_pandas)
    with pytest.raises(ConfigError, match="pip install pandas") as raised:
        frames.episodes_frame([])
    assert len(str(raised.value).splitlines()) == 2


def test_plots_are_figures(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text('{"reward/mean": 0.5}\n{"reward/mean": 0.7, "lr": 1}\n')
    result = trained(run=str(tmp_path))
    (axes,) = result.plot().axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5, 0.7], [0.2, 0.6]]
    assert len(result.plot("reward/mean", "lr").axes) == 2
    with pytest.raises(ConfigError, match=r"no metric 'lrr'; did you mean lr"):
        result.plot("lrr")
    with pytest.raises(ConfigError, match="moved or removed"):
        trained(run=str(tmp_path / "gone")).plot()
    (axes,) = evaluated().plot().axes
    assert list(axes.lines[0].get_ydata()) == [0.5, 0.5]


def test_a_curve_stays_in_its_frame():
    assert curve_svg([0.5]) == ""
    assert 'points="0.0,60.0 160.0,0.0 320.0,30.0"' in curve_svg([0.0, 1.0, 0.5])
    assert 'points="0.0,60.0 320.0,0.0"' in curve_svg([-4.0, 6.0])


def test_a_script_is_no_notebook():
    assert view.open_view(None, 3) is None


def test_an_unknown_attribute_or_metric_is_answered_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"has no attribute 'history'; it has .*evaluations,"):
        trained().history  # noqa: B018
    history = [{"reward/mean": 0.5, "loss": 1.0}]
    for name, said in (
        ("reward/meen", "; did you mean reward/mean"),
        ("x", "; it has loss, r"),
    ):
        with pytest.raises(ConfigError, match=f"no metric '{name}'{said}"):
            curve_figure(history, {}, metrics=[name], title="t")
