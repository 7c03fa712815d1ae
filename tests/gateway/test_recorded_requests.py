"""Requests that programs sent, recorded whole."""

import asyncio
import json
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_name("recorded")


@pytest.mark.parametrize("name", ["codex-0.171-web-search", "codex-0.171-gpt-5.5"])
def test_a_recorded_request_is_answered(name, stage, spell, words):
    scene = stage([spell.canonical(words.ANSWER + words.END)], max_model_len=100_000)
    body = (RECORDED / f"{name}.json").read_bytes()
    answer = asyncio.run(scene.post(scene.open(), body, path="/v1/responses"))
    assert answer.status == 200, answer.data
    assert answer.typed_events[-1]["type"] == "response.completed"
    assert json.loads(body)["stream"]
