"""The whole job in small, as a user runs it."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from arl_envs.math.env import MathEnv
from arl_envs.math.oracle import solve
from arl_warmup.keys import InitConfig
from transformers import AutoModelForCausalLM

from agentgym_rl.config import load_config
from agentgym_rl.storage import EpisodeReader

from .conftest import SMALL, Run, descendants
from .forked import arl

pytestmark = pytest.mark.slow


FIXED_NAMES = """
    reward/mean reward/std episode/turns episode/tokens staleness/mean staleness/max
    staleness/dropped versions_per_episode mismatch/token_mult_prob_error mismatch/max_abs
    mismatch/sampling_importance_ratio policy/approx_entropy policy/approx_kl
    policy/clip_fraction policy/behavior_weight_mean policy/behavior_weight_max
    policy/behavior_weight_masked grad_norm lr throughput/trained_tokens_per_s
    throughput/generated_tokens_per_s time/rollout_wait time/proximal time/forward_backward
    time/optimizer time/weight_sync time/checkpoint overlap env/math/reward/mean
"""


def test_a_small_run_leaves_what_it_promises(start):
    run = start(executed=True)
    result = run.result()
    assert {"eval_before", "eval_after", "steps", "staleness_max", "overlap", "run"} <= set(result)
    assert result["steps"] == 4
    assert result["staleness_max"] <= 2
    assert result["num_episodes"] >= 4 * 16 + 2 * 32
    assert result["loop_lag_ms"]["p99"] <= result["loop_lag_ms"]["max"]
    assert result["sandbox"] is None
    for name in ("config.toml", "metrics.jsonl", "reward.png", "episodes.db", "logs/engine-0.log"):
        assert (run.folder / name).stat().st_size > 0, name
    assert list((run.folder / "checkpoints").glob("step-*/manifest.json"))
    assert run.leftovers() == set()
    AutoModelForCausalLM.from_pretrained(run.folder / "export")
    names = FIXED_NAMES.split()
    # Where every group has equal rewards, which chance decides, no row is computed.
    taught = [step for step in run.metrics() if step["policy/computed_share"]]
    for step in taught:
        assert set(names) <= set(step)
        assert [name for name in names if step[name] is None] == ["overlap"] * (not step["step"])
    fresh = "mismatch/token_mult_prob_error/staleness_0"
    assert taught
    assert all(fresh in step for step in taught if not step["step"])
    report = json.loads(arl("timeline", "--json", run.folder).stdout)
    assert report["steps"] == 4
    with closing(EpisodeReader(run.folder / "episodes.db")) as log:
        # A group that ends after the last batch is drawn too.
        assert report["episodes"] == len(log.episode_ids(untrained=True)) >= 4 * 16


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_eta_zero_is_on_policy_to_rounding(start, temperature):
    """Engine and trainer agree on every token of every batch, at any temperature."""
    run = start(
        "--rollout.max_staleness=0", f"--rollout.temperature={temperature}", "--eval.num_tasks=0"
    )
    assert run.result()["staleness_max"] == 0
    assert max(step["mismatch/max_abs"] for step in run.metrics()) <= 1e-4


def test_several_environments_train_in_one_run(start):
    twins = '[{id="math", name="short", weight=3}, {id="math", name="long", options={level=2}}]'
    run = start("--env=arl_envs.mix:SPEC", f"--env.options.envs={twins}", "--eval.temperature=0")
    result = run.result()
    assert set(result["envs"]) == {"short", "long"}
    for step in run.metrics():
        shares = [n for n in ("short", "long") if f"env/{n}/episodes" in step]
        total = sum(step[f"env/{n}/episodes"] * step[f"env/{n}/reward/mean"] for n in shares)
        assert total / 16 == pytest.approx(step["reward/mean"])
    before = [envs["before"] for envs in result["envs"].values()]
    assert min(before) <= result["eval_before"] <= max(before)


def test_two_ranks_warm_up_and_train_one_run(start, tmp_path):
    data = tmp_path / "demonstrations.jsonl"
    source = MathEnv.task_source("train", seed=0)
    shown = [
        [{"role": "user", "content": task.data["question"]}, solve(task)[-1]]
        for task in (source[i] for i in range(24))
    ]
    data.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in shown))
    run = start(
        *("--init=sft", f"--data={data}", "--init.rows_per_step=8"),
        *("--trainer.num_ranks=2", "--eval.num_tasks=0", "--steps=2"),
    )
    assert run.result()["steps"] == 2
    assert (run.folder / "logs" / "trainer-1.log").exists()
    assert run.leftovers() == set()
    losses = (run.folder / "init/steps.jsonl").read_text()
    steps = [json.loads(line) for line in losses.splitlines()]
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert steps[-1]["loss"] < steps[0]["loss"]
    config = load_config(run.folder / "config.toml")  # the run is one of the model that came of it
    assert config.init == InitConfig()
    assert config.model.path == str(run.folder / "init" / "model")
    about = json.loads((run.folder / "init/warmup.json").read_text())
    assert (about["model"], about["rows"]) == ("bundled/math", 24)


def test_stragglers_are_dropped_and_their_budget_returned(start, tmp_path):
    run = start(
        "--env=straggler:Straggler",
        f"--env.options.metrics={tmp_path}/run0/metrics.jsonl",
        "--env.options.steps=3",
        "--steps=8",
        "--rollout.max_staleness=1",
        "--eval.num_tasks=0",
    )
    result = run.result()
    assert result["steps"] == 8
    assert result["staleness_max"] <= 1
    assert result["groups_dropped"]["stale"] >= 1


ONE_STEP = ("--rollout.max_staleness=0", "--steps=1", "--eval.num_tasks=64", "--seed=5")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("finished") / "run", *SMALL, *ONE_STEP)
    yield run
    run.process.kill()


def test_a_finished_run_can_be_evaluated_and_is_not_written_over(finished):
    run = finished
    run.result()
    for model in (f"--run={run.folder}", f"--checkpoint={run.folder}/checkpoints/step-1"):
        done = arl("eval", "--json", model)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["num_tasks"] == 64
    again = arl("train", f"--run={run.folder}")
    assert again.returncode == 2
    assert "already holds a run" in again.stderr


def test_an_agent_that_always_fails_stops_the_run_with_its_place(start):
    run = start("--agent=straggler:Broken", "--eval.num_tasks=0", "--rollout.trial_s=0")
    code, _, err = run.wait()
    assert code == 1
    assert "RuntimeError: this agent is broken (tests/e2e/straggler.py, line 79, in run)" in err
    assert not descendants(run.process.pid)


def test_the_same_seed_gives_the_same_evaluation(finished, start):
    first, second = (run.result()["eval_before"] for run in (finished, start(*ONE_STEP)))
    assert first == second
