"""What the benchmark of plans predicts, keeps and compares."""

import json

from agentgym_rl.config import load_config
from agentgym_rl.plan.episodes import row
from benchmarks import adaptive, plan
from benchmarks._plan_paper import Setting, _fixed, paper_rows
from tests.kit.cases import cases


@cases("flags", plan.RUNS.values(), ids=list(plan.RUNS))
def test_every_run_is_a_configuration_of_its_own(flags):
    def config(*more):
        return load_config(
            None, dict(flag.removeprefix("--").split("=", 1) for flag in (*plan.JOB[2:], *more))
        )

    assert config(*flags) != config()


@cases("setting", adaptive.SETTINGS)
def test_every_way_is_a_configuration_that_can_be_run(setting):
    flags, fixed = adaptive.SETTINGS[setting]
    for way, more in adaptive._ways(fixed).items():
        given = (*adaptive.JOB[1:], *flags, *more)
        rollout = load_config(
            None,
            dict(flag.removeprefix("--").split("=", 1) for flag in given if "env=" not in flag),
        ).rollout
        assert (rollout.concurrency == "adaptive") == (way == "adapted")
        assert rollout.admitted_groups <= rollout.most_groups


def test_what_is_there_is_neither_predicted_nor_run_again(tmp_path, monkeypatch):
    kept = tmp_path / "rows"
    row = {"part": "runs", "run": "synchronous", "error": 0.1}
    other = row | {"part": "vllm"}
    kept.write_text(json.dumps(row) + "\n" + json.dumps(other) + "\n")
    predictions = {"runs": {"synchronous": {"episodes_per_s": 10.0}}}
    (tmp_path / "rows.runs.json").write_text(json.dumps(predictions))
    monkeypatch.setenv("ARL_BENCH_ROWS", str(kept))
    monkeypatch.setattr(plan, "train", None)
    assert plan.compare("runs", ["synchronous"]) == [row]


def test_the_papers_setting_small():
    rows, ratios = paper_rows(Setting(gpus=4, groups=2, group_size=2), bounds=(0, 1))
    assert all(row["staleness_max"] <= row["bound"] for row in rows)
    assert set(ratios) == {
        "asynchronous over synchronous",
        "interrupted over waiting",
        "dynamic over fixed micro-batches",
    }
    assert ratios["interrupted over waiting"] > 1


def test_fixed_micro_batches_are_safe_for_the_longest_rows():
    setting = Setting(budget=32_768, context=16_384)
    rows = [row(length, 0) for length in (10, 20, 30, 40, 50)]
    assert _fixed(setting)(rows, 32_768) == [30, 70, 50]
