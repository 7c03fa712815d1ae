"""Teachers that a real vLLM serves: log-probs of the policy's tokens from its prefill."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from arl_objectives.keys.teacher import TeacherConfig
from arl_objectives.served_teachers import check_teachers

from agentgym_rl.core import ConfigError
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.teaching import NOISE, furthest, rows_of, taught

from .conftest import StartVllm, VllmServer
from .test_train import arl, finished

LONGEST = 512
"""The length of the rows; the teacher's context holds one token more."""


@pytest.fixture(scope="module")
def teacher(start_vllm: StartVllm, tmp_path_factory) -> VllmServer:
    """The bundled model as its owner may serve it: with defaults that change what is sampled, and
    prefills in small pieces."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    shutil.copytree(BUNDLED, folder)
    sampling = {"do_sample": True, "temperature": 0.6, "top_k": 3, "repetition_penalty": 1.5}
    (folder / "generation_config.json").write_text(json.dumps(sampling))
    flags = (f"--max-model-len={LONGEST + 1}", "--max-num-batched-tokens=64", "--max-num-seqs=8")
    return start_vllm(model_dir=folder, alone=flags)


@pytest.mark.parametrize("whose", ["its user's", "ours"])
def test_a_vllm_teacher_tells_what_the_frozen_policy_computes(teacher, vllm_server, whose):
    """Servers of its user, and those of `arl engine --backend vllm`, which tell the log-probs of
    the distribution that was sampled from."""
    url = teacher.url if whose == "its user's" else vllm_server.url
    rows = rows_of(2, 17, 64, 65, 200, 200, 511, LONGEST if whose == "its user's" else 300)
    # The second time, all are in the prefix cache.
    assert furthest([*taught(url, rows), *taught(url, rows[::-1])]) < NOISE


def test_a_vllm_teacher_without_room_for_one_token_more_is_refused(vllm_server, teacher):
    def check(url: str, longest: int) -> None:
        config = TeacherConfig.model_validate({"models": url})
        asyncio.run(check_teachers(config, BUNDLED, longest))

    check(teacher.url, LONGEST)
    check(vllm_server.url, LONGEST - 1)
    said = "context of 512 tokens, and rows have up to 512 .* serve it with 513"
    with pytest.raises(ConfigError, match=said):
        check(vllm_server.url, LONGEST)


def test_a_run_learns_from_a_vllm_teacher(teacher, tmp_path: Path):
    run = tmp_path / "run"
    size = ("--steps=2", "--rollout.groups_per_batch=4", "--rollout.group_size=4")
    keys = ("--eval.num_tasks=0", f"--algo.teacher.models={teacher.url}/v1")
    process = arl("train", "--env=math", "--agent=react", f"--run={run}", *size, *keys, "--json")
    code, _, err = finished(process)
    assert code == 0, err
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["teacher/taught"] for step in steps] == [1, 1]
    assert abs(steps[0]["teacher/kl"]) < NOISE  # it is what the policy begins with
