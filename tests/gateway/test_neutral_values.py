"""Parameters that an endpoint does not have, with values that change nothing."""

from __future__ import annotations

import asyncio

import pytest

HELLO = [{"role": "user", "content": "Hi"}]
DIALECTS = {
    "chat": ("/v1/chat/completions", {"messages": HELLO}),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 60}),
    "count_tokens": ("/v1/messages/count_tokens", {"messages": HELLO}),
    "responses": ("/v1/responses", {"input": "Hi"}),
}
NEUTRAL = {
    "top_a": 0,
    "min_p": 0,
    "repetition_penalty": 1.0,
    "length_penalty": 1,
    "min_tokens": 0,
    "use_beam_search": False,
    "functions": [],
    "stop_token_ids": [],
    "guided": {},
    "frobnicate": None,
}
FULL = {
    "repetition_penalty": 1.1,
    "length_penalty": True,
    "min_tokens": 1,
    "use_beam_search": True,
    "functions": [{"name": "f"}],
    "stop_token_ids": [5],
    "guided": {"regex": "a"},
    "frobnicate": 0,
}


@pytest.fixture
def ask(stage, spell, words):
    scene = stage([spell.canonical("Ok." + words.END)])

    def ask(dialect, **fields):
        path, needed = DIALECTS[dialect]
        return asyncio.run(scene.post(scene.open(train=False), path=path, **needed, **fields))

    return ask


@pytest.mark.parametrize("dialect", DIALECTS)
def test_values_that_change_nothing_are_accepted(ask, dialect):
    assert ask(dialect, **NEUTRAL).status == 200


@pytest.mark.parametrize("dialect", DIALECTS)
def test_any_other_value_is_refused_by_name(ask, dialect):
    for name, value in FULL.items():
        answer = ask(dialect, **NEUTRAL | {name: value})
        assert (answer.status, name in answer.error["message"]) == (400, True), answer.error


def test_a_call_s_arguments_stay_as_they_were_sent(stage, spell, words):
    """Beside a neutral value, the body is read a second time without it."""
    scene = stage([spell.canonical("Ok." + words.END)] * 2)
    use = '{"type": "tool_use", "id": "t", "name": "f", "input": {"a":   1.50e1}}'
    result = '{"type": "tool_result", "tool_use_id": "t", "content": "x"}'
    for more in ("", '"min_p": 0, '):
        body = (
            f'{{{more}"model": "m", "max_tokens": 9, "messages": [{{"role": "user", "content": '
            f'"Hi"}}, {{"role": "assistant", "content": [{use}]}}, '
            f'{{"role": "user", "content": [{result}]}}]}}'
        )
        answer = asyncio.run(scene.post(scene.open(), body.encode(), path="/v1/messages"))
        assert answer.status == 200, answer.data
    first, second = scene.engine.journal
    assert first.prompt == second.prompt
