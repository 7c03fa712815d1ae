"""Checks of turns that other packages register: which turns they get, and what they count."""

import asyncio

import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import extensions
from agentgym_rl.core.extensions import register_extension
from agentgym_rl.gateway import TurnCheck
from agentgym_rl.gateway.session.turn_check import turn_checks


class Odd(TurnCheck):
    """The messages of every other turn that continues a conversation."""

    counters = {"odd_turns": "turns that were checked", "odd_messages": "their messages"}  # noqa: RUF012

    def draws(self, config, name):
        return int(name.rpartition("/")[2]) % 2 == 1

    def found(self, chat, fed):
        assert fed.context.path.whole()
        return ["odd_turns", *(["odd_messages"] * len(fed.messages))]


@pytest.fixture
def odd(monkeypatch):
    monkeypatch.setattr(extensions, "_registered", {})
    turn_checks.cache_clear()
    register_extension("turn_checks", "odd", Odd())
    yield
    turn_checks.cache_clear()


@pytest.mark.usefixtures("odd")
def test_a_check_counts_what_it_finds_in_the_turns_that_it_draws(chat, spell, words):
    def said(_):
        return spell.canonical("a" + words.END)

    scene = words.Stage(chat, said, config=GatewayConfig())
    session = scene.open()
    asyncio.run(scene.play(session, ["b"] * 4))
    found = scene.gateway.close_session(session).counters
    assert (found["odd_turns"], found["canary_turns"]) == (2, 0)
    assert found["odd_messages"] >= 2 * 3
    other = scene.open()
    assert scene.gateway.close_session(other).counters["odd_turns"] == 0
