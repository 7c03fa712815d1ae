"""Requests made up from a description of the gateway's routes, well-formed and not: no 5xx, no
reply that is not as described, no word of one session in another.

ARL_FUZZ_EXAMPLES asks for more of them (per route), made up anew each time.
"""

import asyncio
import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial

import pytest
import requests

from agentgym_rl.config import GatewayConfig
from agentgym_rl.engines.scripted import ScriptedEngine
from tests.gateway.described import document

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")

EXAMPLES = int(os.environ.get("ARL_FUZZ_EXAMPLES", "0"))
PLAIN_REFUSALS = (
    "the chat template refuses",
    "maximum context length",
    "the model has no token",
    "prefill: the last message has",
    "a form holds for a whole reply",
    "continue_final_message",
    "give only one",  # conversation and previous_response_id
    "there is no item",
    "input must not be empty",  # it only offers tools
    "needs stream",
    "cannot be set by the client",
    "got `float`",  # 3.0 is an integer to JSON Schema
    "expected an integer",
    "no response of this session that was stored",
    "not found",  # a response
    "there is another function named",
    "but no tools are offered",
    "there is no tool",
    "all tools must be allowed",
    "must be a schema of an object",
)


class MarkingEngine(ScriptedEngine):
    """Every reply names its session; calls, broken calls and cut replies are among them."""

    def __init__(self, spell, words):
        super().__init__([])
        self._spell, self._words = spell, words

    async def generate(self, token_ids, sampling, *, session_id, **options):
        self._script = partial(self._mark, session_id)
        deltas = super().generate(token_ids, sampling, session_id=session_id, **options)
        async with aclosing(deltas) as stream:
            async for delta in stream:
                yield delta

    def _mark(self, session_id, prompt):
        mark, end = f"mark-of-{session_id} ", self._words.END
        odd = ["wörd ✓", self._words.CALL, "<tool_call>\nno\n</tool_call>", "<tool_call>", ""]
        reply = self._spell.canonical(mark + odd[len(prompt) % 5] + end)
        return self._words.Say(reply, chunk=4)


class Served:
    """A gateway in a thread of its own, and the sessions that are fuzzed side by side."""

    def __init__(self, scene):
        self.scene = scene
        self.sessions = []
        self.url = ""
        self._pool = ThreadPoolExecutor(2)
        self._ready, self._stop = threading.Event(), None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self):
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with self.scene.gateway.serve() as url:
            self.url = url.removesuffix("/v1")
            self._ready.set()
            await self._stop.wait()

    def post(self, sent):
        """The replies to one request, sent by all sessions at once."""

        def ask(session):
            headers = {**sent["headers"], "x-api-key": session.key}
            return requests.request(**{**sent, "headers": headers}, timeout=20)

        return self._pool.map(ask, self.sessions)

    @contextlib.contextmanager
    def serving(self):
        self._thread.start()
        try:
            assert self._ready.wait(60)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)
            self._pool.shutdown()


@pytest.fixture
def served(stage, spell, words):
    config = GatewayConfig(max_session_turns=10**9)
    scene = stage(MarkingEngine(spell, words), config=config)
    served = Served(scene)
    for name in ("anna", "bert"):
        session = scene.open(turn_timeout_s=60.0, train=False)
        session.id = name
        served.sessions.append(session)
    with served.serving():
        yield served


def _fuzz(served, operation, mode):
    """Both sessions send each request at once; the statuses of the replies, which are checked."""
    statuses = []

    @hypothesis.settings(
        max_examples=EXAMPLES or 8,
        deadline=None,
        database=None,
        derandomize=not EXAMPLES,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        if isinstance(case.body, dict) and isinstance(case.body.get("n"), int):
            case.body["n"] = min(case.body["n"], 3)
        case.query, case.cookies, case.headers = {}, {}, {}
        sent = case.as_transport_kwargs(base_url=served.url)
        for session, response in zip(served.sessions, served.post(sent), strict=True):
            _check(served, operation, session, response)
            statuses.append(response.status_code)
            if mode.is_positive and response.status_code == 400:
                assert any(why in response.text for why in PLAIN_REFUSALS), (response.text, sent)

    ask()
    return statuses


def _check(served, operation, session, response):
    other = next(one for one in served.sessions if one is not session)
    assert response.status_code < 500, response.text
    for foreign in (f"mark-of-{other.id}", f"{other.id}-{other._tag}", other.key):
        assert foreign not in response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        operation.validate_response(schemathesis.Response.from_requests(response, verify=False))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_made_up_requests(served, mode):
    schema = schemathesis.openapi.from_dict(document())
    mode = schemathesis.GenerationMode[mode]
    for found in schema.get_all_operations():
        operation = found.ok()
        statuses = _fuzz(served, operation, mode)
        share = statuses.count(200) / len(statuses)
        assert share > 0.1 if mode.is_positive else share < 0.9, (operation.path, share)
    _check_records(served)


def _check_records(served):
    engine = served.scene.engine
    assert not any(entry.finish_reason is None for entry in engine.journal)
    for session in served.sessions:
        record = served.scene.gateway.close_session(session)
        assert not record.infra_error
        mine = {entry.prompt for entry in engine.journal if entry.session_id == session.id}
        for row in record.rows:
            tokens = tuple(row.tokens.tolist())
            assert any(tokens[: len(prompt)] == prompt for prompt in mine)
