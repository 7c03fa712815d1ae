"""Real command lines and frameworks: the rows that each makes, on a scripted model that calls the
tools it offers, and where the conversation is short on the embedded engine, too."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agentgym_rl.gateway import SessionSampling
from tests.exhaustive import REQUIRED

sys.path.append(str(Path(__file__).parent))

import engines  # whose path leads to the benchmarks

from benchmarks.client_loops.clients import CLIENTS, Client
from benchmarks.client_loops.installed import NotInstalled
from benchmarks.client_loops.play import played

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("collected")]
APART = ("aider", "llama-index", "autogen", "google-adk", "crewai", "strands", "haystack")
"""The clients that need an environment of their own: `arl bench clients` plays them."""
TESTED = [name for name in CLIENTS if name not in APART]
SAMPLING = SessionSampling(max_tokens=64, temperature=0.3, seed=5)
"""Cool enough for a small model to keep to the form of calls."""
SHORT = [name for name in TESTED if CLIENTS[name].is_short]


def installed(name: str) -> Client:
    """A client; skips if it is not installed, fails where ARL_REQUIRE names agents."""
    client = CLIENTS[name]
    try:
        if "ARL_CLI_MODULES" not in os.environ:
            raise NotInstalled("make test-agents")
        client.version()
    except NotInstalled as missing:
        wanted = "agents" in REQUIRED
        (pytest.fail if wanted else pytest.skip)(f"{client.label} is not installed: {missing}")
    return client


@pytest.mark.parametrize("name", TESTED)
def test_all_that_a_client_samples_trains_once(name, chat):
    client = installed(name)
    found = asyncio.run(played(client.agent, client.case, chat))
    assert (found.error, list(found.refused), found.unused) == ("", [], 0)
    assert found.shown, "the client did not run its tools"
    assert not found.wrong
    assert found.forks == client.forks
    assert found.rows == 1 + found.record.counters["forks"]
    assert found.trained_share == 1.0


@pytest.mark.parametrize("name", ["claude-code-mcp", "opencode-mcp", "mini-swe-agent"])
def test_the_final_message_is_the_last_reply(name, chat):
    client = installed(name)
    found = asyncio.run(played(client.agent, client.case, chat))
    assert found.said == ("lorem" if name == "mini-swe-agent" else client.case.replies[-1])


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    with engines.embedded(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.mark.parametrize("name", SHORT)
def test_a_client_is_exact_on_a_real_engine(name, chat, request):
    client = installed(name)
    embedded = request.getfixturevalue("embedded")
    found = asyncio.run(
        played(
            client.agent,
            client.case,
            chat,
            opened=embedded.open(),
            sampling=SAMPLING,
            max_model_len=engines.MAX_MODEL_LEN,
        )
    )
    assert not found.wrong
    assert found.record.num_turns >= 1
    assert (found.rows, found.forks) == (1, {})
    assert found.trained_share == 1.0
