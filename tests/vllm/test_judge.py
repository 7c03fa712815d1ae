"""A judge that a real vLLM serves: the form of its verdict is the server's to enforce."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from arl_envs.judge import Criterion, Judge

from agentgym_rl.core import EnvError, InfraError

from .conftest import StartVllm

RUBRIC = [
    Criterion("right", "Right?"),
    Criterion("brief", "Brief?", low=3, high=5),
    Criterion("kind", "Kind?", low=-2, high=120),
]


@pytest.fixture(scope="module")
def url(start_vllm: StartVllm) -> str:
    """A server that allows no endless blanks between the tokens of JSON, with room for a judge's
    instructions in the bundled model's short tokens."""
    form = "--structured-outputs-config"
    flags = (f"{form}.backend=xgrammar", f"{form}.disable_any_whitespace=true")
    return start_vllm(alone=("--max-model-len=1024", *flags)).url + "/v1"


def scored(url: str, model: str = "policy", **settings: Any) -> dict[str, float]:
    given = {"max_tokens": 64, "max_asks": 1, "timeout_s": 240, **settings}
    return asyncio.run(Judge(model, base_url=url, **given).score("2 + 2?", "4", RUBRIC))


def test_every_reply_of_a_vllm_judge_is_a_verdict(url):
    """The model speaks no English, and would never write such an object by itself: the schema, with
    its bounds, makes it one at the first request."""
    found = scored(url, temperature=1.0)
    assert all(0 <= found[one.name] <= 1 for one in RUBRIC)
    assert found["judge_calls"] == 3
    assert found["judge_tokens"] > 300
    with pytest.raises(InfraError, match="no verdict in 1 replies"):
        scored(url, response_format="none")


def test_a_vllm_judge_refuses_a_model_that_it_does_not_serve(url):
    with pytest.raises(EnvError, match="404"):
        scored(url, "other")
