"""Measurements of other packages: ranks take them, and their numbers are metrics of the run."""

import json
import os
import subprocess
import sys

import pytest

from tests.kit.extension import install

KEYS = '''
from agentgym_rl.core import OnResume, Section


class PaceKeys(Section):
    after = "max_grad_norm"

    pace: OnResume[bool] = False
    """The switch to measure the pace of training."""
'''
PACE = '''
from contextlib import contextmanager

import torch

from agentgym_rl.trainer import Measurement


class Pace(Measurement):
    """The pace of training: its steps, what each moves, and the tokens of a batch."""

    @classmethod
    def of(cls, config, policy):
        return cls(policy) if config.pace else None

    def __init__(self, policy):
        self._weight = max(policy.model.parameters(), key=torch.numel)

    def begin(self, models):
        self._models, self._steps, self._before = models, 0, models[0].row_tokens

    @contextmanager
    def step(self, tally):
        before, has_gradient = self._weight.detach().clone(), self._weight.grad is not None
        yield
        moved = bool((before != self._weight).any()) and self._weight.grad is None
        self._steps += has_gradient and moved

    def end(self, tally, phases):
        tally.mean("pace/steps", self._steps, 1)
        tally.mean("pace/tokens", self._models[0].row_tokens - self._before, 1)
        tally.mean("pace/phases", len({name for name, *_ in phases.intervals}), 1)

    def merged(self, metrics):
        return {**metrics, "pace/tokens_per_step": metrics["pace/tokens"] / metrics["pace/steps"]}
'''
POINTS = {
    "keys": {"trainer.pace": "pace_keys:PaceKeys"},
    "measurements": {"pace": "pace:Pace", "gone": "nowhere:Gone"},
}
TINY = (
    *("--steps=1", "--rollout.groups_per_batch=2", "--rollout.group_size=2"),
    "--algo.entropy_coef=0.01",  # so that every episode trains
    *("--eval.num_tasks=0", "--logging.progress=none", "--logging.plot=false"),
)


@pytest.mark.slow
def test_a_run_has_its_metrics_where_its_key_is_on(tmp_path):
    """One that cannot be imported is no obstacle to others."""
    folder = install(tmp_path / "site", {"pace_keys": KEYS, "pace": PACE}, POINTS)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    found = []
    for key in ("true", "false"):
        run = tmp_path / key
        words = ("train", f"--run={run}", f"--trainer.pace={key}", *TINY)
        command = [sys.executable, "-m", "agentgym_rl", *words]
        env = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        lines = (run / "metrics.jsonl").read_text().splitlines()
        found.append(next(row for row in map(json.loads, lines) if "loss" in row))
    on, off = found
    assert on["pace/steps"] == 4  # as many as minibatches
    assert on["pace/tokens"] == 4 * on["pace/tokens_per_step"] > 0
    assert on["pace/phases"] > 0
    assert not [name for name in off if name.startswith("pace/")]
    assert "throughput/trainer_tflops" in off
