"""The main job and `arl audit` on real vLLM servers, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentgym_rl.weights import is_adapter
from tests.kit.servers import servers_of, wait_at_work
from tests.kit.versions import read_version

from .conftest import running

RUN_TIMEOUT_S = 900


def arl(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agentgym_rl", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_training(
    python: str, folder: Path, *argv: str, kind: str = "vllm"
) -> subprocess.Popen[str]:
    flags = [f"--engine={kind}", f"--engine.python={python}", "--logging.progress=plain"]
    return arl("train", "--env=math", "--agent=react", *flags, f"--run={folder}", *argv, "--json")


def finished(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=RUN_TIMEOUT_S)
    return process.returncode, json.loads(out), err


def train(python: str, folder: Path, *argv: str) -> dict[str, Any]:
    code, result, err = finished(start_training(python, folder, *argv))
    assert code == 0, err
    return result


def audit(folder: Path) -> tuple[int, dict[str, Any]]:
    code, result, _ = finished(arl("audit", str(folder), "--json"))
    return code, result


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_the_main_job_learns_and_every_trained_token_is_exact(vllm_python, tmp_path):
    flags = ("--rollout.interrupt=recompute", "--weights.keep_versions=all")
    result = train(vllm_python, tmp_path / "run", *flags)
    assert result["eval_before"] <= 0.45
    assert result["eval_after"] >= 0.90
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)
    assert report["max"] <= 1e-3


SMALL = (
    "--steps=12",
    "--eval.num_tasks=0",
    "--weights.keep_versions=all",
    "--rollout.max_tokens=64",
    # Blocks of 32 tokens: the short prompts of this job then share some.
    '--engine.flags=["--block-size", "32"]',
)


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_forced_turns_train_and_vllm_reads_grammars_as_the_gateway_does(
    vllm_python, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "e2e"))
    flags = ("--agent=demanding:Demanding", "--trainer.learning_rate=3e-4", "--steps=4")
    train(vllm_python, tmp_path / "run", *SMALL, "--rollout.interrupt=recompute", *flags)
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)
    assert report["max"] <= 1e-3
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["episode/constrained_turns"] == 2
    assert last["episode/unmatched_turns"] == 0
    assert last["episode/trained_tokens"] == (
        last["episode/sampled_tokens"] - last["episode/single_choice_tokens"]
    )


@pytest.mark.timeout(RUN_TIMEOUT_S)
@pytest.mark.parametrize("serve", ["merged", "adapter"])
def test_every_token_of_a_run_of_an_adapter_is_exact(vllm_python, tmp_path, serve):
    flags = ("--lora.rank=8", f"--lora.serve={serve}", "--rollout.interrupt=recompute")
    result = train(vllm_python, tmp_path / "run", *SMALL, *flags)
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)
    assert report["max"] <= 1e-3
    versions = (tmp_path / "run" / "weights").iterdir()
    assert {is_adapter(read_version(path)) for path in versions} == {True}


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_in_keep_mode_tokens_before_any_update_are_exact(vllm_python, tmp_path):
    # So few at a time that rollout is the slower side: updates always find requests under way.
    train(vllm_python, tmp_path / "run", *SMALL, "--engine.max_num_seqs=4")
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)
    assert report["max"] <= 1e-3
    assert report["tokens"] > report["mixed_kv"]["tokens"] > 0


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_a_prefix_cache_shared_across_versions_is_caught(vllm_python, tmp_path):
    shared = ("--env=tests.vllm.shared_prompt:SharedPrompt", "--engine.prefix_cache=shared")
    train(vllm_python, tmp_path / "run", *SMALL, *shared)
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"]) == (1, False)
    assert report["max"] > 1e-2


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_raw_logprobs_are_caught(vllm_python, tmp_path):
    raw = '--engine.flags=["--logprobs-mode", "raw_logprobs"]'
    flags = [flag for flag in SMALL if not flag.startswith("--engine.flags")]
    train(vllm_python, tmp_path / "run", *flags, "--rollout.temperature=0.7", raw)
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"]) == (1, False)
    assert "--logprobs-mode processed_logprobs" in json.dumps(report)


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_a_server_that_runs_already_gets_its_weights_over_sockets(start_vllm, tmp_path):
    """Attached, and by `gloo`: no file of ours is ever in the server's reach."""
    server = start_vllm(transport="gloo")
    attached = (f'--engine.urls=["{server.url}"]', "--weights.transport=gloo")
    flags = [flag for flag in SMALL if not flag.startswith("--engine.flags")]
    try:
        exact = "--rollout.interrupt=recompute"
        result = train("", tmp_path / "run", *flags, *attached, exact)
        again = train("", tmp_path / "again", *flags, *attached, exact)  # it serves version 12 now
    finally:
        server.stop()
    assert result["steps"] == again["steps"] == 12
    for run in ("run", "again"):
        code, report = audit(tmp_path / run)
        assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)


# ---------------------------------------------------------------- two servers, one is killed
@pytest.mark.timeout(RUN_TIMEOUT_S)
@pytest.mark.parametrize(
    ("num_servers", "transport"),
    [
        pytest.param(2, "shm", id="one of two, amid 128 episodes"),
        pytest.param(1, "gloo", id="the only one, to which no file can bring a version"),
    ],
)
def test_a_server_is_killed_and_no_episode_pays(
    vllm_python, tmp_path, monkeypatch, num_servers, transport
):
    folder = tmp_path / "run"
    monkeypatch.setenv("ARL_RUN", str(folder))
    flags = (f"--engine.num_servers={num_servers}", f"--weights.transport={transport}")
    process = start_training(vllm_python, folder, *flags, "--steps=20", "--eval.num_tasks=0")
    try:
        servers = partial(servers_of, folder, flag="--worker-extension-cls", seed="--seed")

        def last() -> tuple[int, str]:
            return servers()[num_servers - 1]

        wait_at_work(process, folder, lambda: running(last()[1]) >= 16, timeout_s=240)
        os.kill(last()[0], signal.SIGKILL)
        code, result, err = finished(process)
    finally:
        process.kill()
    assert code == 0, err
    assert result["steps"] == 20
    assert result["engines"]["failovers"] > 0
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    if num_servers == 1:
        assert result["engines"]["restarts"] == 1
