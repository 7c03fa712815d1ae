"""Requests that programs sent, recorded whole."""

import asyncio
import json
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_name("recorded")
SERVICE = pytest.mark.skip(reason="tools of the service (web_search) are refused")
SEARCH = pytest.mark.skip(reason="tools with free texts and a search by the client are refused")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("codex-0.171-web-search", marks=SERVICE),
        pytest.param("codex-0.171-gpt-5.5", marks=SEARCH),
    ],
)
def test_a_recorded_request_is_answered(name, stage, spell, words):
    scene = stage([spell.canonical(words.ANSWER + words.END)], max_model_len=100_000)
    body = (RECORDED / f"{name}.json").read_bytes()
    answer = asyncio.run(scene.post(scene.open(), body, path="/v1/responses"))
    assert answer.status == 200, answer.data
    assert answer.typed_events[-1]["type"] == "response.completed"
    assert json.loads(body)["stream"]
