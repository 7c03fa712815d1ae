"""What a person sees of a run."""

import asyncio
import re
import time

import pytest

from agentgym_rl.report import make_progress, named, training_text
from agentgym_rl.report.evaluation import _estimate_lines, eval_line
from agentgym_rl.report.figures import evaluated_lines, trained_lines
from agentgym_rl.report.progress import sparkline
from agentgym_rl.storage import EvalRecord

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
    assert re.search(r"step   0   1% +reward 0\.50 +stale 1\.2/2", lines[2])
    assert re.search(r"step  99 100% +reward 0\.50 +stale 1\.2/2", lines[3])


def test_the_time_left_of_a_run_that_goes_on_is_of_its_own_pace(capsys):
    """Not of the steps that another process trained; none is told before two steps are done, or
    where the trainer begins again with an earlier step."""
    progress = make_progress("plain", total_steps=100)
    for step in (50, 51, 40, 41):
        progress.step(step, METRICS)
        time.sleep(0.1)
    first, second, again, last = capsys.readouterr().err.splitlines()
    assert "eta" not in first + again
    assert 4 < float(re.search(r"eta (\d+) s", second)[1]) < 100
    assert 5 < float(re.search(r"eta (\d+) s", last)[1]) < 100


def test_lines_of_several_runs_in_a_process_begin_with_their_names(capsys):
    async def play(run: str, others: asyncio.Barrier) -> None:
        progress = make_progress("plain", total_steps=1)
        with named(run):
            progress.phase("alone" if not others.n_waiting else "beside the other")
            await others.wait()
            progress.phase("training")
            await others.wait()

    async def main() -> None:
        others = asyncio.Barrier(2)
        async with asyncio.TaskGroup() as runs:
            for run in ("sweep-1", "sweep-2"):
                runs.create_task(play(run, others))

    asyncio.run(main())
    first, second, *both = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r" +0\.\ds alone", first)
    assert re.fullmatch(r"sweep-2 +0\.\ds beside the other", second)
    assert sorted(line.split()[0] for line in both) == ["sweep-1", "sweep-2"]


NO_EVALUATION = {
    **{"run": "runs/a", "steps": 2, "duration_s": 9.0, "overlap": 0.5, "envs": {}, "best": None},
    **{"eval_before": None, "eval_after": None, "eval_outcomes": {}, "evaluations": ()},
    **{
        "batches_taught": 2,
        "resumed_from": None,
        "staleness_mean": 1.0,
        "staleness_max": 2.0,
        "groups_dropped": {},
    },
    **{
        "num_episodes": 16,
        "episodes": 16,
        "episodes_per_s": 2.0,
        "loop_lag_ms": {"p99": 1.0, "max": 2.0},
    },
    **{"sandbox": None, "verifier": None, "judges": {}},
}


def test_a_run_says_how_many_batches_taught_something():
    few = training_text({**NO_EVALUATION, "steps": 3, "batches_taught": 1})
    assert "3 batches, 1 of which taught something; " in few
    assert " 3 batches; " in training_text({**NO_EVALUATION, "steps": 3, "batches_taught": 3})
    assert " 1 batch; " in training_text({**NO_EVALUATION, "steps": 1, "batches_taught": 1})


def test_a_resumed_run_tells_its_own_batches_and_time():
    whole = {**NO_EVALUATION, "steps": 10, "batches_taught": 10, "duration_s": 38.0}
    assert "10 batches; 38 s in all" in training_text(whole)
    text = training_text({**whole, "resumed_from": 6})
    assert "10 batches; 4 of them since the resume, in 38 s" in text
    assert "in all" not in text


def test_a_run_with_a_judge_says_what_it_cost():
    assert "judges" not in training_text(NO_EVALUATION)
    spent = {"judge_calls": 1200.0, "judge_tokens": 34567.0}
    text = training_text({**NO_EVALUATION, "judges": spent})
    assert re.search(r"judges +1,200 calls, 34,567 tokens$", text, re.M)
    text = training_text({**NO_EVALUATION, "judges": {**spent, "judge_usd": 0.001234}})
    assert re.search(r"judges +1,200 calls, 34,567 tokens, \$0\.00123$", text, re.M)


def test_a_run_without_evaluations_names_none():
    text = training_text(NO_EVALUATION)
    assert "held-out" not in text
    assert text.endswith("next: arl inspect runs/a")
    text = training_text(NO_EVALUATION | {"eval_before": 0.25})
    assert re.search(r"held-out reward +0\.250 → -", text)
    assert text.endswith("next: arl inspect runs/a")


def test_a_late_event_loop_is_shown_if_it_costs_something():
    assert "slowed down" not in training_text(NO_EVALUATION)
    late = {"loop_lag_ms": {"p99": 1250.0, "max": 5000.0}}
    text = " ".join(training_text(NO_EVALUATION | late).split())
    assert "held up all other episodes, for 1.2 s in a hundredth of all cases and 5.0 s" in text


def test_a_batch_that_was_sampled_earlier_has_no_speed(capsys):
    progress = make_progress("plain", total_steps=2)
    progress.step(0, METRICS | {"throughput/generated_tokens_per_s": 0.0})
    assert re.search(r"tok/s +- ", capsys.readouterr().err)


def test_a_mean_comes_with_its_interval():
    def line(version, reward, low, high, **more):
        return {"version": version, "status": "done", "eval/reward": reward} | {
            **{"eval/reward_low": low, "eval/reward_high": high, "eval/tasks": 1.0},
            **more,
        }

    ends = (line(0, 0.0, 0.0, 0.793), line(2, 1.0, 0.207, 1.0))
    text = training_text(
        NO_EVALUATION | {"eval_before": 0.0, "eval_after": 1.0, "evaluations": ends}
    )
    assert "95 % intervals 0.000 to 0.793 → 0.207 to 1.000, over 1 task\n" in text
    unknown = line(0, 7.0, None, None, **{"eval/too_long": 3.0})
    text = training_text(NO_EVALUATION | {"eval_before": 7.0, "evaluations": (unknown,)})
    assert "interval unknown: one task → -, over 1 task\n" in text
    record = EvalRecord(
        0, status="done", metrics={k: v for k, v in unknown.items() if k.startswith("eval/")}
    )
    said = "held-out reward 7.000 (interval unknown: one task); 3 episodes too long to be played"
    assert eval_line(record) == f"version 0: {said}"


SEVERAL = METRICS | {"env/math/reward/mean": 0.5, "env/gymnasium:FrozenLake-v1/reward/mean": 0.25}


@pytest.mark.parametrize("style", ["plain", "rich"])
def test_several_environments_are_shown_apart(capsys, style):
    progress = make_progress(style, total_steps=2)
    progress.step(0, SEVERAL)
    progress.close()
    shown = capsys.readouterr().err
    assert re.search(r"math +0\.50|0\.50 +math", shown)
    assert re.search(r"FrozenLake-v1 +0\.25|0\.25 +gymnasium", shown)


def test_one_environment_is_not_shown_twice(capsys):
    make_progress("plain", total_steps=2).step(0, METRICS | {"env/math/reward/mean": 0.5})
    assert "math" not in capsys.readouterr().err


def test_closing_lines_are_by_environment_where_several_played():
    envs = {"a": {"before": 0.5, "after": None}, "b": {"before": 0.25, "after": 1.0}}
    assert [line.split() for line in trained_lines(envs)] == [
        ["0.500", "→", "-", "a"],
        ["0.250", "→", "1.000", "b"],
    ]
    found = {"a": {"reward": 0.5, "num_tasks": 3}, "b": {"reward": 1.0, "num_tasks": 1}}
    assert next(line.strip() for line in evaluated_lines(found)) == "0.500 over 3 tasks of a"
    assert not [*trained_lines({"a": envs["a"]}), *evaluated_lines({"a": found["a"]})]


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
    assert "step 2, 3 of 3 done" in shown


def test_none_shows_nothing(capsys):
    make_progress("none", total_steps=1).step(0, METRICS)
    assert capsys.readouterr() == ("", "")


def test_sparkline_spans_its_range():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([]) == ""


def estimates(reward: float, **more: object) -> list[str]:
    shown = {"reward": reward, "num_tasks": 2, "num_episodes": 2, "cost_usd": None, "resumed": 0}
    pass_at = {"1": {"value": 0.5, "ci": None, "num_tasks": 2}}
    return list(_estimate_lines(shown | {"pass_at": pass_at} | more))


def test_pass_at_one_is_shown_unless_it_repeats_the_mean_reward():
    assert estimates(0.5) == []
    assert "pass@1" in estimates(-0.25)[0]
    assert "pass@1" in estimates(0.5, num_episodes=4)[0]
