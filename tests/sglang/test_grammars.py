"""Replies held to a grammar by real SGLang: the gateway's own text, read by llguidance there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Delta, RequestRefused, SamplingParams
from agentgym_rl.gateway import ChatFormat, ToolCall
from agentgym_rl.gateway.parsers import readers_of
from agentgym_rl.gateway.request.reply_form import ReplyForm
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import GrammarCompiler

ASKED = [{"role": "user", "content": "What is 3*4?"}]
SCHEMA = {
    "type": "object",
    "properties": {"sum": {"enum": [1, 22, 333]}, "why": {"type": "string", "maxLength": 9}},
    "required": ["sum", "why"],
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat.load(BUNDLED)


@pytest.fixture(scope="module")
def grammars(chat: ChatFormat) -> Any:
    return readers_of(chat, GatewayConfig())[1]


async def _reply(engine, chat, grammar, *, name="g", **options: Any) -> Delta:
    prompt = chat.prompt(ASKED, [TOOL])
    params = SamplingParams(200, stop_token_ids=chat.stop_token_ids, grammar=grammar, **options)
    call = engine.generate(prompt, params, request_id=name, session_id=name)
    return [delta async for delta in call][-1]


def _run(server, scenario):
    async def play():
        engine = server.client()
        try:
            async with asyncio.timeout(120):
                return await scenario(engine)
        finally:
            await engine.close()

    return asyncio.run(play())


def test_replies_are_what_they_are_held_to(sglang_server, chat, grammars):
    forms = [ReplyForm(SCHEMA), *(ReplyForm(schema, [TOOL], True) for schema in (None, SCHEMA))]
    written = [grammars.of(form, "assistant\n") for form in forms]

    async def scenario(engine):
        return [
            await _reply(engine, chat, grammar, name=f"{n}-{index}", temperature=2.0)
            for index, grammar in enumerate(written)
            for n in range(4)
        ]

    replies = _run(sglang_server, scenario)
    assert [reply.finish_reason for reply in replies] == ["stop"] * 12
    for index, reply in enumerate(replies):
        text = chat.text(reply.token_ids[:-1])
        parser = readers_of(chat, GatewayConfig())[0]([TOOL], "assistant\n")
        [said] = parser.feed(text) + parser.finish() if index >= 4 else [text]
        called = isinstance(said, ToolCall)
        assert called if 4 <= index < 8 else called or index < 4 or said == text
        jsonschema.validate(json.loads(said.arguments if called else str(said)), SCHEMA)
        forced = reply.logprobs[-1]  # nothing but the end can follow: the mask is in the log-prob
        assert forced == pytest.approx(0.0, abs=1e-5)


def test_its_token_sets_are_those_of_our_own_reading(sglang_server, chat, grammars):
    """What the engine could draw from at each token: its sampling mask, with all of top_k."""
    compiler = GrammarCompiler(
        (BUNDLED / "tokenizer.json").read_text, vocab_size=640, eos_ids=chat.stop_token_ids[:1]
    )
    forms = [ReplyForm(SCHEMA), ReplyForm(None, [TOOL], True), ReplyForm(SCHEMA, [TOOL], True)]
    written = [grammars.of(form, "assistant\n") for form in forms]

    async def scenario(engine):
        return [
            await _reply(engine, chat, text, name=f"m{n}", temperature=2.0, top_k=640)
            for n, text in enumerate(written)
        ]

    for text, reply in zip(written, _run(sglang_server, scenario), strict=True):
        position, several = compiler.begin(text), 0
        for token, support in zip(reply.token_ids, reply.support, strict=True):
            allowed = set(np.flatnonzero(position.allowed()).tolist())
            assert set(support) == allowed
            several += len(allowed) > 1
            position.accept(token)
            assert not position.error
        assert several


def test_a_schema_that_is_none_is_refused_and_the_server_lives(sglang_server, chat, grammars):
    bad = grammars.of(ReplyForm({"type": "nonsense"}), "assistant\n")

    async def scenario(engine):
        with pytest.raises(RequestRefused, match="nonsense"):
            await _reply(engine, chat, bad)
        return await _reply(engine, chat, None, name="after")

    assert _run(sglang_server, scenario).finish_reason in ("stop", "length")
