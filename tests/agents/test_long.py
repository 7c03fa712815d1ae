"""An episode of 100 turns and 64k tokens: exact rows, and turns that do not become slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from arl_agents.swe import SUMMARY_REQUEST, Swe

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Row, Task
from agentgym_rl.engines.scripted import JournalEntry, ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionSampling
from agentgym_rl.gym import Env, Step
from agentgym_rl.models.resolve import BUNDLED

NUM_TURNS, MAX_MODEL_LEN = 100, 65_536
OUTPUT = "lorem ipsum dolor sit amet consetetur " * 22
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
WRITTEN = "The parser was wrong at its end, and the tests have to run again. "


class Terminal(Env):
    """Answers each command with a long output; notes the CPU time of this process at each step."""

    tools = (BASH,)

    def __init__(self) -> None:
        self.times_s: list[float] = []

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return [{"role": "user", "content": "Repair it."}], {}

    async def step(self, action: Any) -> Step:
        self.times_s.append(time.process_time())
        calls = action.get("tool_calls")
        if not calls:
            return Step([], 1.0, terminated=True, truncated=False, info={})
        said = f"{len(self.times_s)}: {OUTPUT}"
        told = [{"role": "tool", "tool_call_id": each["id"], "content": said} for each in calls]
        return Step(told, 0.0, terminated=False, truncated=False, info={})


def played(agent: Swe) -> tuple[Any, list[JournalEntry], Terminal]:
    """The record, the journal and the environment of an episode that ends after NUM_TURNS steps."""
    chat = ChatFormat.load(BUNDLED)
    env = Terminal()

    def reply(prompt: Sequence[int]) -> Sequence[int]:
        number = len(env.times_s) + 1
        call = json.dumps({"name": "bash", "arguments": {"command": f"make step{number}"}})
        said = f"Step {number}.\n<tool_call>\n{call}\n</tool_call>"
        if SUMMARY_REQUEST[-24:] in chat.text(prompt[-100:]):
            said = WRITTEN * 5
        elif number == NUM_TURNS:
            said = "Repaired."
        return chat.encode(f"{said}<|im_end|>")

    engine = ScriptedEngine(reply, max_model_len=MAX_MODEL_LEN)
    gateway = Gateway(
        engine, chat, config=GatewayConfig(), model_name="m", max_model_len=MAX_MODEL_LEN
    )
    sampling = SessionSampling(max_tokens=512, temperature=1.0)
    session = gateway.open_session(sampling=sampling, session_id="e")

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            url = await stack.enter_async_context(gateway.serve())
            clients = await stack.enter_async_context(AgentClients(url))
            await agent.run(env, clients.for_session(session), model="m", task=Task("t", 0))

    asyncio.run(main())
    return gateway.close_session(session), engine.journal, env


def check_exact(rows: Sequence[Row], journal: Sequence[JournalEntry]) -> None:
    """Check that the rows train each sampled token of the journal once, as it was reported."""
    ends = {(*entry.prompt, *entry.token_ids) for entry in journal}
    found: list[tuple[int, float]] = []
    for row in rows:
        assert tuple(row.tokens.tolist()) in ends
        mask = row.loss_mask
        pairs = zip(row.tokens[mask].tolist(), row.behavior_logprobs[mask].tolist(), strict=True)
        found += pairs
        assert set(row.policy_versions[mask].tolist()) == {0}
    said = [
        (token, float(np.float32(logprob)))
        for entry in journal
        for token, logprob in zip(entry.token_ids, entry.logprobs, strict=True)
    ]
    assert sorted(found) == sorted(said)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_turns_are_one_exact_row_and_stay_fast() -> None:
    record, journal, env = played(Swe())
    (row,) = record.rows
    assert record.num_turns == len(journal) == NUM_TURNS
    assert 60_000 < len(row.tokens) <= MAX_MODEL_LEN
    assert record.counters["forks"] == 0
    check_exact(record.rows, journal)
    # The least CPU time of ten turns: other programs and collections of garbage only add to it.
    turns_s = np.diff(env.times_s)
    early_s, late_s = min(turns_s[5:15]), min(turns_s[-10:])
    print(f"{1e3 * early_s:.1f} ms of CPU at turn 10, {1e3 * late_s:.1f} ms at turn {NUM_TURNS}")
    assert late_s <= 3 * early_s


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_summaries_bound_the_context_and_lose_no_token() -> None:
    record, journal, env = played(Swe(summary_tokens=24_000))
    num_summaries = len(journal) - NUM_TURNS
    assert len(env.times_s) == NUM_TURNS
    assert num_summaries == 2
    assert max(len(entry.prompt) for entry in journal) < 26_000
    # Each summary ends a row, and the next one begins with the first messages and the summary.
    assert len(record.rows) == num_summaries + 1
    assert record.counters["forks"] == num_summaries
    assert record.num_turns == NUM_TURNS + num_summaries
    check_exact(record.rows, journal)
