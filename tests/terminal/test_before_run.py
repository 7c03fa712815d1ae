"""A run that this machine cannot do is refused before anything starts, and leaves nothing."""

import asyncio
import json
import os
import re
import shutil
import stat
import subprocess
import sys

import pytest
from arl_check import before_run

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import check_machine
from agentgym_rl.run.train import checked
from tests.kit.cases import cases


def refusal(keys: dict[str, object], *, trains: bool = True) -> str:
    try:
        check_machine(load_config(None, keys), trains=trains)
    except ConfigError as error:
        return str(error)
    return ""


@cases(
    "sizes, says",
    [
        ({"tensor": 3}, "3 does not divide the 4 attention heads of .*; the nearest .* is 2"),
        ({"pipeline": 5}, "pipeline_parallel_size 5: .* has 4 layers, .*; the nearest is 4"),
        ({"tensor": 2, "expert": 2}, "expert_parallel_size 2: .* has no experts; leave it out"),
        ({"pipeline": 3, "tensor": 2}, "^$"),  # vLLM deals out the fourth layer
    ],
)
def test_a_model_that_a_server_cannot_divide_is_refused(sizes, says):
    keys = {f"engine.{name}_parallel_size": size for name, size in sizes.items()}
    assert re.search(says, refusal({"engine.type": "vllm", **keys}))


@cases("experts, says", [(6, "4 does not divide the 6 experts of .*nearest .* is 3"), (8, "^$")])
def test_experts_that_gpus_do_not_divide_are_refused(tmp_path, experts, says):
    folder = shutil.copytree(BUNDLED, tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_experts": experts}))
    keys = {"engine.tensor_parallel_size": 4, "engine.expert_parallel_size": 4}
    for type in ("vllm", "sglang"):
        assert re.search(says, refusal({"engine.type": type, "model.path": str(folder), **keys}))
    assert not refusal({"engine.type": "vllm", "engine.urls": "http://a:1", **keys})


@pytest.fixture
def no_drivers(monkeypatch):
    monkeypatch.setattr("agentgym_rl.config.engine.GPU_DRIVERS", ())


@pytest.fixture
def with_gpu(monkeypatch, tmp_path):
    """A machine with a driver, a torch for GPUs, and the nvidia-smi of a card of Turing."""
    (tmp_path / "driver").touch()
    monkeypatch.setattr("agentgym_rl.config.engine.GPU_DRIVERS", (str(tmp_path / "driver"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Tesla T4, 7.5'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@cases("key", ["trainer.device", "engine.device"])
def test_a_gpu_that_is_not_there_is_named_with_the_key(no_drivers, key):
    said = refusal({key: "cuda"})
    assert said.startswith(f"{key}: 'cuda', but this machine has no GPU")
    assert "use cpu, or auto" in said
    assert not refusal({key: "auto"})


def test_an_evaluation_needs_no_gpu_of_the_trainer(no_drivers):
    assert not refusal({"trainer.device": "cuda"}, trains=False)
    assert refusal({"engine.device": "cuda"}, trains=False)


def test_the_nodes_of_a_cluster_are_not_this_machine(no_drivers):
    assert not refusal({"trainer.device": "cuda", "cluster.type": "slurm"})


def test_hidden_gpus_and_a_torch_for_cpus_are_named(with_gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES hides every GPU" in refusal({"trainer.device": "cuda"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    version = tmp_path / "torch" / "version.py"
    version.write_text("cuda: Optional[str] = None\nhip: Optional[str] = None\n")
    assert "this torch was built for CPUs only" in before_run.no_gpu()
    version.write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    assert before_run.no_gpu() == ""


def test_a_card_without_bfloat16_is_named(with_gpu, tmp_path):
    said = refusal({"engine.dtype": "bfloat16"})
    assert "engine.dtype is 'bfloat16', and Tesla T4 has compute capability 7.5" in said
    assert said.endswith("bfloat16 needs 8.0; use --engine.dtype=float32")
    assert not refusal(
        {"engine.dtype": "bfloat16", "engine.device": "cpu", "trainer.dtype": "float32"}
    )
    assert "trainer.dtype is 'bfloat16'" in refusal({"trainer.dtype": "bfloat16"})
    with (tmp_path / "nvidia-smi").open("a") as program:  # another card, which may be the one used
        program.write("echo 'NVIDIA H200, 9.0'\n")
    assert not refusal({"engine.dtype": "bfloat16"})


def test_lora_without_peft_is_refused(monkeypatch):
    monkeypatch.setattr("arl_lora.keys.find_spec", lambda name: None)
    assert "lora.rank 8 needs peft" in refusal({"lora.rank": 8})
    assert not refusal({"lora.rank": 0})
    assert not refusal({"lora.rank": 8}, trains=False)


def test_a_training_run_is_checked_first(no_drivers):
    config = load_config(None, {"trainer.device": "cuda", "env.id": "no-such-env"})
    with pytest.raises(ConfigError, match="this machine has no GPU"):
        asyncio.run(checked(config, say=lambda text: None))


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path):
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    argv = [sys.executable, "-m", "agentgym_rl", "train", "--trainer.device=cuda"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
