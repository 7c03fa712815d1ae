"""What an SGLang server is started with, and which SGLang that may be (no SGLang needed)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from arl_lora.keys import LoraConfig
from arl_sglang import server
from arl_sglang.build import RELEASES, find_build
from arl_sglang.checks import _lacks, server_info
from arl_sglang.command import server_command
from arl_sglang.kind import SglangEngineConfig
from safetensors.numpy import load_file

from agentgym_rl.config import RolloutConfig, WeightsConfig
from agentgym_rl.core import ConfigError
from agentgym_rl.engines import Build, EngineSetup
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases
from tests.kit.launches import launch

CPU = RELEASES.build("/v/bin/python", "0.5.23", is_cpu=True)
GPU = RELEASES.build("/v/bin/python", "0.5.23", is_cpu=False)


def command(build: Build, *, index: int = 0, interrupt="recompute", lora=None, **fields):
    rollout = RolloutConfig(interrupt=interrupt)
    sections = {"seed": 0, "rollout": rollout, "lora": lora or LoraConfig()}
    engine = SglangEngineConfig(**fields)
    return server_command(launch(engine, index=index, label="3.0", **sections), build)


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_a_cpu_server():
    argv, env = command(CPU, num_threads=3, kv_cache_gib=2, stream_interval=4, max_num_seqs=7)
    assert argv[:3] == ["/v/bin/python", "-P", server.__file__]
    assert value(argv, "--model-path") == str(BUNDLED)
    assert value(argv, "--stream-interval") == "4"
    assert value(argv, "--max-running-requests") == "7"
    assert value(argv, "--context-length") == "512"
    assert value(argv, "--weight-version") == "3.0"
    assert value(argv, "--grammar-backend") == "llguidance"
    # 2 GiB over 4 layers of keys and values for 2 heads of 32 float32
    assert value(argv, "--max-total-tokens") == str(2 * 2**30 // (2 * 4 * 2 * 32 * 4))
    assert {"--incremental-streaming-output", "--enable-metrics", "--sleep-on-idle"} <= set(argv)
    assert not {"--disable-overlap-schedule", "--disable-radix-cache"} & set(argv)
    assert (env["OMP_NUM_THREADS"], env["SGLANG_USE_CPU_ENGINE"]) == ("3", "1")
    assert (env["ARL_DIE_WITH_PARENT"], env["HF_HUB_OFFLINE"]) == ("1", "1")


def test_a_gpu_server_has_nothing_of_the_cpu():
    argv, env = command(GPU, gpu_memory_utilization=0.5, tensor_parallel_size=2, gpus=(3, 1))
    assert not {"--device", "--max-total-tokens", "--attention-backend"} & set(argv)
    assert value(argv, "--mem-fraction-static") == "0.5"
    assert value(argv, "--tensor-parallel-size") == "2"
    assert "SGLANG_USE_CPU_ENGINE" not in env
    assert env["CUDA_VISIBLE_DEVICES"] == "3,1"


def test_a_server_divides_experts_over_some_of_its_gpus():
    argv, _ = command(GPU, tensor_parallel_size=4, expert_parallel_size=2)
    assert value(argv, "--tensor-parallel-size") == "4"
    assert value(argv, "--ep-size") == "2"
    assert "--ep-size" not in command(GPU, tensor_parallel_size=4)[0]


INFO: dict[str, Any] = {
    **{"version": "0.5.23", "served_model_name": "m", "dtype": "float32", "random_seed": 1},
    **{"max_req_input_len": 500, "incremental_streaming_output": True, "enable_metrics": True},
    "grammar_backend": "llguidance",
}


@cases(
    "has, config, says",
    [
        ({"pp_size": 2}, {}, "no --pp-size 2 .SGLang samples on in a pause"),
        ({}, {"tensor_parallel_size": 2, "expert_parallel_size": 2}, "--ep-size 2 .it has 1"),
        ({"ep_size": 4}, {}, "^$"),
    ],
)
def test_a_running_server_of_other_parts_is_refused(has, config, says):
    setup = EngineSetup(SglangEngineConfig(**config), WeightsConfig(), "recompute")
    found = server_info(INFO | has)
    assert found is not None
    assert re.search(says, "\n".join(_lacks(found, 512, setup)))


@cases("interrupt", ["keep", "recompute", "abort", "wait"])
def test_only_keep_does_without_the_overlap_scheduler(interrupt):
    argv, _ = command(CPU, interrupt=interrupt)
    assert ("--disable-overlap-schedule" in argv) == (interrupt == "keep")


def test_the_prefix_cache_may_be_off_and_flags_and_variables_are_passed_on():
    argv, env = command(CPU, prefix_cache="off", flags=("--page-size", "16"), env={"A": "b"})
    assert "--disable-radix-cache" in argv
    assert argv[-2:] == ["--page-size", "16"]
    assert env["A"] == "b"


def test_servers_have_different_seeds():
    seeds = {value(command(CPU, index=index)[0], "--random-seed") for index in range(3)}
    assert len(seeds) == 3


@cases("build", [CPU, GPU])
def test_a_server_that_computes_adapters_begins_with_an_empty_one(build):
    lora = LoraConfig(rank=6, target_modules=("q_proj", "down_proj"), serve="adapter")
    argv, _ = command(build, interrupt="abort", lora=lora)
    assert value(argv, "--max-lora-rank") == "6"
    name, _, folder = value(argv, "--lora-paths").partition("=")
    assert name == "arl-3.0"
    tensors = load_file(Path(folder) / "adapter_model.safetensors")
    assert tensors
    assert not any(tensor.any() for tensor in tensors.values())
    at = argv.index("--lora-target-modules")
    assert argv[at + 1 : at + 3] == ["down_proj", "q_proj"]
    assert ("--lora-backend" in argv) == build.is_cpu
    assert "--enable-lora" not in command(build, lora=LoraConfig(rank=6))[0]


@cases("version", ["0.5.15", "0.5.24", "0.6.0", "nightly"])
def test_other_versions_are_refused(version):
    with pytest.raises(ConfigError, match=r"supported is >=0\.5\.16,<0\.5\.24"):
        RELEASES.check(version, where="here")


@cases("interrupt", ["keep", "recompute"])
def test_an_sglang_without_spans_cannot_interrupt_so(interrupt):
    with pytest.raises(ConfigError, match=r"needs rollout\.interrupt 'abort' or 'wait'"):
        RELEASES.check_interrupt(interrupt, has_spans=False, where="here")
    RELEASES.check_interrupt("abort", has_spans=False, where="here")
    RELEASES.check_interrupt("wait", has_spans=False, where="here")
    RELEASES.check_interrupt(interrupt, has_spans=True, where="here")


def test_an_interpreter_without_sglang_says_what_to_install():
    with pytest.raises(ConfigError, match="arl docs sglang#install"):
        find_build(sys.executable)


def fake_python(folder: Path, packages: dict[str, str]) -> str:
    """An interpreter that answers the question for its packages with these."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\nimport json\nprint(json.dumps([{packages!r}, []]))\n")
    file.chmod(0o755)
    return str(file)


@cases(
    "packages, is_cpu",
    [
        ({"torch": "2.13.0+cpu", "sgl-kernel": "1"}, True),
        ({"torch": "2.13.0"}, True),
        ({"torch": "2.13.0", "sglang-kernel": "1"}, False),
    ],
)
def test_a_build_without_kernels_is_for_the_cpu(tmp_path, packages, is_cpu):
    python = fake_python(tmp_path, {"sglang": "0.5.20"} | packages)
    build = find_build(python)
    find_build.cache_clear()
    assert (build.version, build.is_cpu, build.has_spans) == ("0.5.20", is_cpu, True)


def test_the_program_of_the_server_imports_nothing_of_this_package():
    code = f"import runpy, sys; runpy.run_path({server.__file__!r}); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert "agentgym_rl" not in done.stdout


def fake_sglang(folder: Path) -> None:
    """A package that is started as SGLang is, and spawns a process whose imports take long."""
    package = folder / "sglang"
    (package / "srt").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "srt/__init__.py": "",
        "srt/plugins.py": "def load_plugins(): pass",
        "srt/server_args.py": "def prepare_server_args(argv): return argv",
        "srt/utils.py": "def kill_process_tree(pid, include_parent): pass",
        "slow.py": "import time\ntime.sleep(600)\ndef work(): pass",
        "launch_server.py": "import multiprocessing, sys, time, types\n"
        "def run_server(args):\n"
        "    multiprocessing.set_start_method('spawn', force=True)\n"
        "    slow = types.ModuleType('sglang.slow')\n"  # found there, and not imported here
        "    exec('def work(): pass', slow.__dict__)\n"
        "    sys.modules['sglang.slow'] = slow\n"
        "    slow.work.__module__ = 'sglang.slow'\n"
        "    process = multiprocessing.Process(target=slow.work)\n"
        "    process.start()\n"
        "    print(process.pid, flush=True)\n"
        "    process.join()\n",
    }
    for name, text in files.items():
        (package / name).write_text(text)


def state(pid: int) -> str:
    """The kernel's letter for the state of a process; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@cases("wait_s", [0.0, 1.0])
def test_a_child_that_is_still_importing_dies_with_the_server(tmp_path, wait_s):
    """SGLang's own request to the kernel comes after its imports."""
    folder = tmp_path / str(wait_s)
    fake_sglang(folder)
    env = {**os.environ, "PYTHONPATH": str(folder), "ARL_DIE_WITH_PARENT": "1"}
    argv = [sys.executable, "-P", server.__file__, "--any"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        time.sleep(wait_s)
        assert state(child) not in ("", "Z", "X")
        process.kill()
    deadline = time.monotonic() + 60
    while state(child) not in ("", "Z", "X") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert state(child) in ("", "Z", "X")
