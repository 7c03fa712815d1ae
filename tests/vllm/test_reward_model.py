"""The route /classify of a real vLLM, beside `arl engine --reward-model` on the same folder."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from arl_envs.judge import RewardModel
from transformers import AutoModelForSequenceClassification

from agentgym_rl.core import EnvError
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import HttpClient

from .conftest import StartVllm

NOISE = 1e-4
"""The difference of scores that two right forwards in float32 may have."""
NAME = "policy"
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3 more?"},
    {"role": "assistant", "content": "7"},
]
TEXTS = ["4", "The answer is \\boxed{4}.", "2 + 2 = 5" * 9, "x" * 300]
BODIES: list[dict[str, Any]] = [
    {"messages": TALK},
    {"messages": TALK, "add_generation_prompt": True},
    {"input": TEXTS},
    {"input": [5, 6, 7]},
    {"input": [[5, 6, 7], [8, 9, 2], [*range(4, 260)]]},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The bundled model with a head for one label, which scores texts a few units apart."""
    top = tmp_path_factory.mktemp("reward") / NAME
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        BUNDLED, num_labels=1, dtype=torch.float32
    )
    model.score.weight.data.normal_(std=0.5)
    model.save_pretrained(top)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED / name, top / name)
    return top


@pytest.fixture(scope="module")
def vllm_url(start_vllm: StartVllm, folder: Path) -> str:
    flags = ("--runner=pooling", "--max-model-len=512")
    return start_vllm(model_dir=folder, alone=flags).url


@pytest.fixture(scope="module")
def own_url(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "agentgym_rl", "engine", "--reward-model", str(folder)]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("reward model ready on "), line
            yield line.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def classified(url: str, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        found = []
        async with asyncio.timeout(250), HttpClient() as http:
            for body in bodies:
                data = json.dumps(body).encode()
                head = {"Content-Type": "application/json"}
                status, text = await http.call(
                    *(url, "POST", "/classify"), body=data, headers=head, timeout_s=240
                )
                assert status == 200, text
                found.append(json.loads(text))
        return found

    return asyncio.run(ask())


@pytest.mark.parametrize("raw", [True, False], ids=["logits", "probabilities"])
def test_vllm_and_our_engine_score_alike(vllm_url, own_url, raw):
    bodies = [body | ({"use_activation": False} if raw else {}) for body in BODIES]
    for theirs, ours in zip(
        classified(vllm_url, *bodies), classified(own_url, *bodies), strict=True
    ):
        assert ours.keys() == theirs.keys() - {"system_fingerprint"}
        for name in ("prompt_tokens", "total_tokens", "completion_tokens"):
            assert ours["usage"][name] == theirs["usage"][name]
        for one, other in zip(ours["data"], theirs["data"], strict=True):
            assert one == other | {"probs": pytest.approx(other["probs"], abs=NOISE)}
    scores = [one["probs"][0] for one in classified(own_url, *bodies)[2]["data"]]
    assert max(scores) - min(scores) > 100 * NOISE


def test_they_differ_at_a_text_that_ends_with_the_padding_token(vllm_url, own_url):
    """Ours scores the last token that is not padding, as transformers does; vLLM the last one."""
    body = {"input": [[5, 6, 7, 0], [5, 6, 7]], "use_activation": False}
    (theirs, theirs_plain), (ours, ours_plain) = (
        [one["probs"][0] for one in classified(url, body)[0]["data"]] for url in (vllm_url, own_url)
    )
    assert ours == pytest.approx(ours_plain, abs=NOISE)
    assert theirs_plain == pytest.approx(ours_plain, abs=NOISE)
    assert abs(theirs - ours) > 100 * NOISE


def test_a_reward_model_gives_the_same_rewards(vllm_url, own_url, folder):
    async def ask(url: str) -> list[dict[str, float]]:
        name = NAME if url == vllm_url else str(folder)
        model = RewardModel(name, base_url=url, timeout_s=240)
        async with asyncio.timeout(250), asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(model.score("2 + 2?", text)) for text in TEXTS]
        return [task.result() for task in asked]

    theirs, ours = (asyncio.run(ask(url)) for url in (vllm_url, own_url))
    for one, other in zip(ours, theirs, strict=True):
        assert one["reward"] == pytest.approx(other["reward"], abs=NOISE)
        assert one["judge_tokens"] == other["judge_tokens"] > 0
    assert len({round(one["reward"], 2) for one in ours}) == len(TEXTS)


def test_a_model_that_is_not_served_is_refused_by_both(vllm_url, own_url):
    for url in (vllm_url, own_url):
        with pytest.raises(EnvError, match="404"):
            asyncio.run(RewardModel("other", base_url=url).score("q", "a"))
