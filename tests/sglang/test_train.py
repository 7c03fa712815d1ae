"""The main job and `arl audit` on real SGLang servers, as a user types them."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentgym_rl.runtime.http_client import call
from agentgym_rl.weights import is_adapter
from tests.kit.servers import servers_of, wait_at_work
from tests.kit.versions import read_version
from tests.vllm.conftest import running, start_vllm, vllm_python  # noqa: F401 - fixtures
from tests.vllm.test_train import audit, finished, start_training

RUN_TIMEOUT_S = 1800
SMALL = (
    "--steps=6",
    "--eval.num_tasks=0",
    "--weights.keep_versions=all",
    "--weights.update_timeout_s=120",
    "--rollout.max_tokens=64",
)


def train(python: str, folder: Path, *argv: str) -> dict[str, Any]:
    code, result, err = finished(start_training(python, folder, *argv, kind="sglang"))
    assert code == 0, err
    return result


@pytest.mark.timeout(RUN_TIMEOUT_S)
@pytest.mark.parametrize("interrupt", ["recompute", "abort", "wait"])
def test_every_trained_token_is_exact(sglang_python, tmp_path, interrupt):
    result = train(sglang_python, tmp_path / "run", *SMALL, f"--rollout.interrupt={interrupt}")
    assert result["steps"] == 6
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)
    assert report["max"] <= 1e-4
    # `wait` and `abort` never let a request see two versions; a turn goes on after an abort.
    assert (report["places"]["after_update"]["tokens"] > 0) == (interrupt != "wait")


@pytest.mark.timeout(RUN_TIMEOUT_S)
@pytest.mark.parametrize("interrupt", ["abort", "wait"])
def test_every_token_of_a_run_with_adapters_beside_the_weights_is_exact(
    sglang_python, tmp_path, interrupt
):
    flags = ("--lora.rank=8", "--lora.serve=adapter", f"--rollout.interrupt={interrupt}")
    result = train(sglang_python, tmp_path / "run", *SMALL, *flags)
    assert result["steps"] == 6
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)
    assert report["max"] <= 1e-4
    versions = (tmp_path / "run" / "weights").iterdir()
    assert {is_adapter(read_version(path)) for path in versions} == {True}


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_in_keep_mode_tokens_before_any_update_are_exact(sglang_python, tmp_path):
    # So few at a time that rollout is the slower side: updates always find requests under way.
    train(sglang_python, tmp_path / "run", *SMALL, "--engine.max_num_seqs=4")
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)
    assert report["max"] <= 1e-4
    assert report["tokens"] > report["mixed_kv"]["tokens"] > 0


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_forced_turns_train_and_sglang_reads_grammars_as_the_gateway_does(
    sglang_python, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "e2e"))
    flags = ("--agent=demanding:Demanding", "--rollout.interrupt=recompute", "--steps=3")
    train(sglang_python, tmp_path / "run", *SMALL, *flags)
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["episode/constrained_turns"] == 2
    assert last["episode/unmatched_turns"] == 0


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_a_prefix_cache_shared_across_versions_is_caught(sglang_python, tmp_path):
    """In `keep` mode an update leaves the cache as it is; without salts others then read it."""
    shared = ("--env=tests.vllm.shared_prompt:SharedPrompt", "--engine.prefix_cache=shared")
    train(sglang_python, tmp_path / "run", *SMALL, *shared)
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"]) == (1, False)
    assert report["max"] > 1e-2


# ---------------------------------------------------------------- two servers, one is killed
@pytest.mark.timeout(RUN_TIMEOUT_S)
@pytest.mark.parametrize("num_servers", [2, 1])
def test_a_server_is_killed_and_no_episode_pays(sglang_python, tmp_path, monkeypatch, num_servers):
    folder = tmp_path / "run"
    monkeypatch.setenv("ARL_RUN", str(folder))
    flags = (f"--engine.num_servers={num_servers}", "--rollout.interrupt=recompute")
    servers = partial(servers_of, folder, flag="--weight-version", seed="--random-seed")
    process = start_training(sglang_python, folder, *SMALL, *flags, kind="sglang")
    try:

        def last() -> tuple[int, str]:
            return servers()[num_servers - 1]

        def busy() -> bool:
            loads = json.loads(call(last()[1], "GET", "/v1/loads", timeout_s=30)[1])["loads"]
            return loads[0]["num_running_reqs"] > 0

        wait_at_work(process, folder, busy, timeout_s=RUN_TIMEOUT_S / 2)
        os.kill(last()[0], signal.SIGKILL)
        code, result, err = finished(process)
    finally:
        process.kill()
    assert code == 0, err
    assert result["steps"] == 6
    assert result["engines"]["failovers"] > 0
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    assert servers() == {}
    code, report = audit(folder)
    assert (code, report["passed"]) == (0, True)


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_sglang_dies_beside_vllm_and_no_episode_pays(
    start_sglang,
    start_vllm,  # noqa: F811
    tmp_path,
):
    """128 episodes and more; both kinds get the same versions from one publication."""
    sglang = start_sglang(flags=("--random-seed", "77"))
    vllm = start_vllm()
    urls = json.dumps([sglang.url, vllm.url])
    flags = (f"--engine.urls={urls}", "--rollout.interrupt=recompute")
    process = start_training("", tmp_path / "run", *SMALL, *flags, kind="sglang")
    try:

        def busy() -> bool:
            load = sglang.ask("GET", "/v1/loads")[1]["loads"][0]
            return load["num_running_reqs"] > 0 and running(vllm.url) > 0

        wait_at_work(process, tmp_path / "run", busy, timeout_s=RUN_TIMEOUT_S / 2)
        sglang.stop()
        code, result, err = finished(process)
    finally:
        process.kill()
        vllm.stop()
    assert code == 0, err
    assert result["steps"] == 6
    assert result["engines"]["failovers"] > 0
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    code, report = audit(tmp_path / "run")
    assert (code, report["passed"], report["coverage"]) == (0, True, 1.0)
    assert report["max"] <= 1e-4
