"""A mixture of experts, from the engine's choice of experts to the trainer's, in a real run."""

import contextlib
import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentgym_rl.core import tensor_heads
from agentgym_rl.storage import EpisodeReader
from tests.kit.moe import save_moe

from .forked import arl

pytestmark = pytest.mark.slow

MOE = (
    "--env=tools",
    "--steps=3",
    "--rollout.groups_per_batch=4",
    "--rollout.group_size=4",
    "--rollout.max_tokens=24",
    "--rollout.interrupt=recompute",
    "--eval.num_tasks=0",
    "--weights.keep_versions=all",
    "--engine.routing_replay=on",
    "--engine.max_model_len=512",
    # Rewards of a random model differ by the lengths of its replies.
    "--algo.reward.overlong_penalty=1",
    "--algo.reward.overlong_limit=40",
    "--algo.reward.overlong_buffer=40",
)


def rows_of(folder):
    with contextlib.closing(EpisodeReader(folder / "episodes.db")) as reader:
        return [row for name in reader.episode_ids() for row in reader.trajectory(name).rows]


def test_a_mixture_of_experts_trains_replays_audits_and_is_exported(start, tmp_path):
    model = save_moe(tmp_path / "moe")
    run = start(*MOE, f"--model={model}")
    run.result()
    rows = rows_of(run.folder)
    assert rows
    for row in rows:
        known = row.experts.index
        assert known[:-1].all()
        assert not known[-1]  # no step was computed with it
        assert row.experts.ids.shape == (len(row), 3, 2)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert any(line.get("grad_norm") for line in lines)
    assert all(line["mismatch/experts_known"] > 0.9 for line in lines if line.get("grad_norm"))
    report = json.loads(arl("audit", "--json", run.folder).stdout)
    assert report["passed"], report["failures"]
    done = arl("export", "--model", run.folder, "--out", tmp_path / "out")
    assert not done.returncode, done.stderr
    assert tensor_heads(tmp_path / "out").keys() == tensor_heads(model).keys()
    before, after = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (model, tmp_path / "out")
    )
    changed = [
        not torch.equal(one, other)
        for one, other in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert np.mean(changed) > 0.9


def test_adapters_of_experts_train_audit_and_are_exported(start, tmp_path):
    model = save_moe(tmp_path / "moe")
    keys = ("--lora.rank=4", "--lora.target_modules=experts.gate_up_proj,experts.down_proj")
    run = start(*MOE, f"--model={model}", *keys, "--algo.expert_balance_coef=0.01")
    run.result()
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["grad_norm"] > 0 for line in lines)
    assert all(line["experts/balance_loss"] >= 0.9 < line["experts/max_load"] for line in lines)
    report = json.loads(arl("audit", "--json", run.folder).stdout)
    assert report["passed"], report["failures"]
    done = arl("export", "--model", run.folder, "--out", tmp_path / "out")
    assert not done.returncode, done.stderr
    before, after = (
        dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
        for folder in (model, tmp_path / "out")
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if ".experts." in name}
