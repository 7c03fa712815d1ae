"""Adapters of other packages: a run trains one in place of all weights, and engines merge it."""

import json
import os
import subprocess
import sys

import pytest
from safetensors.numpy import load_file

from agentgym_rl.storage import newest_checkpoint, read_manifest
from tests.kit.cases import cases
from tests.kit.extension import install

KEYS = '''
from agentgym_rl.core import AdapterKeys, Section


class NudgeConfig(AdapterKeys):
    """A nudge to the queries of the first block."""

    place = "nudge"

    width: int = 0
    """The number of directions; 0: no nudge."""

    @property
    def adapter_rank(self):
        return self.width


class NudgeKeys(Section):
    after = "trainer"

    nudge: NudgeConfig = NudgeConfig()


class NamelessConfig(NudgeConfig):
    place = "nameless"


class NamelessKeys(Section):
    nameless: NamelessConfig = NamelessConfig()
'''
NUDGE = '''
import contextlib

import torch
from safetensors.torch import save_file
from torch import nn

from agentgym_rl.trainer import Adapter
from agentgym_rl.weights import peft_tensors

LAYER = "model.layers.0.self_attn.q_proj"


class Nudge(Adapter):
    """A nudge."""

    @classmethod
    def on(cls, model, keys, *, model_dir, seed):
        model.requires_grad_(False)
        made = cls(model_dir, scaling=2.0)
        made.layer = layer = model.get_submodule(LAYER)
        weight, made.factor = layer.weight, 2.0
        draw = torch.Generator().manual_seed(seed)
        first = torch.randn(keys.width, weight.shape[1], generator=draw)
        layer.first = nn.Parameter(first.to(weight))
        layer.second = nn.Parameter(torch.zeros(weight.shape[0], keys.width).to(weight))
        layer.register_forward_hook(made.add)
        return made

    def add(self, layer, inputs, output):
        return output + self.factor * (inputs[0] @ layer.first.T @ layer.second.T)

    def pairs(self, parameters):
        return {LAYER: (parameters[f"{LAYER}.first"], parameters[f"{LAYER}.second"])}

    @contextlib.contextmanager
    def off(self):
        self.factor = 0.0
        yield
        self.factor = 2.0

    def save(self, folder, state):
        folder.mkdir()
        tensors = {name: tensor.contiguous() for name, tensor in peft_tensors(state).items()}
        save_file(tensors, folder / "nudge.safetensors")
'''
POINTS = {
    "keys": {"nudge": "theirs_keys:NudgeKeys", "nameless": "theirs_keys:NamelessKeys"},
    "adapters": {"nudge": "theirs_nudge:Nudge"},
}
TINY = (
    *("--steps=2", "--rollout.groups_per_batch=2", "--rollout.group_size=2"),
    *("--eval.num_tasks=0", "--logging.progress=none", "--logging.plot=false"),
)


@pytest.fixture
def arl(tmp_path):
    """`arl` where the package with the nudge is installed."""
    folder = install(tmp_path / "site", {"theirs_keys": KEYS, "theirs_nudge": NUDGE}, POINTS)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])

    def run(*words):
        command = [sys.executable, "-m", "agentgym_rl", *words]
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)

    return run


@pytest.mark.slow
def test_a_run_trains_it_and_engines_merge_it(arl, tmp_path):
    folder = tmp_path / "run"
    objective = ("--algo.kl.coef=0.01", "--algo.kl.reference=initial", "--algo.entropy_coef=0.01")
    flags = ("--nudge.width=3", "--weights.keep_versions=all", "--trainer.checkpoint_every=1")
    done = arl("train", "--json", f"--run={folder}", *flags, *objective, *TINY)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 2
    assert read_manifest(newest_checkpoint(folder / "checkpoints")).base
    (file,) = (folder / "export/adapter").glob("*.safetensors")
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    first, second = (load_file(file)[f"{layer}.lora_{it}.weight"] for it in "AB")
    assert first.shape[0] == second.shape[1] == 3
    assert second.any()
    audited = arl("audit", str(folder))
    assert audited.returncode == 0, audited.stdout + audited.stderr


@pytest.mark.slow
@cases(
    "flags, said",
    [
        (["--lora.rank=4"], "lora.rank 4 with nudge: a run trains one adapter; leave one out"),
        (["--algo.kl.refresh_every=2", "--algo.kl.reference=initial", "--algo.kl.coef=1"],
         "algo.kl.refresh_every 2 with nudge: the reference has no adapter"),
        (["--nudge.width=0", "--nameless.width=1"], "nameless: no installed package has its"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(arl, tmp_path, flags, said):
    done = arl("train", f"--run={tmp_path / 'run'}", "--nudge.width=2", *flags, *TINY)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
