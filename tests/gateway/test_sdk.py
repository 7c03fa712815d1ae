"""The real OpenAI client over real HTTP, and the clients agents are given."""

import asyncio
import contextlib
import socket
import time

import pytest

from agentgym_rl.gateway import AgentClients
from agentgym_rl.runtime import http_server


@contextlib.asynccontextmanager
async def _serving(scene):
    async with scene.gateway.serve() as base_url, AgentClients(base_url) as clients:
        yield clients


def _run(scene, use):
    async def main():
        async with _serving(scene) as clients:
            return await use(clients)

    return asyncio.run(main())


async def _converse(client, words, turns, *, stream):
    messages = list(words.FIRST)
    for _ in range(turns):
        fields = {"model": "tiny", "messages": messages, "tools": [words.CALCULATOR]}
        if stream:
            message = await _streamed(client, fields)
        else:
            reply = await client.chat.completions.create(**fields)
            message = reply.choices[0].message.model_dump(exclude_none=True)
        messages += [message, *words.observe(message, "12")]
    return messages


async def _streamed(client, fields):
    content, calls = "", []
    async for chunk in await client.chat.completions.create(**fields, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        calls += [call.model_dump(exclude={"index"}) for call in delta.tool_calls or []]
    return {"role": "assistant", "content": content, "tool_calls": calls}


@pytest.mark.parametrize("stream", [False, True])
def test_an_episode_through_the_sdk_is_one_exact_row(stage, spell, words, stream):
    replies = [words.CALL, words.CALL, words.ANSWER]
    scene = stage([spell.bytewise(reply + words.END) for reply in replies])
    session = scene.open()
    _run(scene, lambda clients: _converse(clients.for_session(session), words, 3, stream=stream))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def test_errors_reach_the_sdk_as_its_own_and_are_asked_once(stage, words):
    openai = pytest.importorskip("openai")
    scene = stage([], max_model_len=10)
    session = scene.open()

    async def ask(clients):
        client = clients.for_session(session).with_options(max_retries=5)
        outcomes = []
        for fields in ({}, {"presence_penalty": 1}, {"api_key": "sk-arl-1"}, {"closed": True}):
            if fields.pop("closed", False):
                scene.gateway.close_session(session)
            asking = client.with_options(api_key=fields.pop("api_key", session.key))
            try:
                await asking.chat.completions.create(model="tiny", messages=words.FIRST, **fields)
            except openai.APIStatusError as error:
                outcomes.append((error.status_code, error.code))
        return outcomes

    assert _run(scene, ask) == [
        (400, "context_length_exceeded"),
        (400, "unsupported_parameter"),
        (401, "invalid_api_key"),
        (410, "session_closed"),
    ]


def test_a_failed_engine_is_not_asked_again_by_a_retrying_client(stage, spell, words):
    openai = pytest.importorskip("openai")
    scene = stage(lambda _: words.Say(spell.bytewise("ab"), fail_after=1))
    session = scene.open()

    async def ask(clients):
        client = clients.for_session(session).with_options(max_retries=5)
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="tiny", messages=words.FIRST)

    _run(scene, ask)
    assert len(scene.engine.journal) == 1


def test_cancelling_a_call_aborts_the_engine(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab" + words.END), delay_s=600)])
    session = scene.open(turn_timeout_s=300)

    async def ask(clients):
        call = clients.for_session(session).chat.completions.create
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(call(model="tiny", messages=words.FIRST))
            while not scene.engine.journal:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            asked.cancel()
            while not session.counters["undelivered_turns"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return scene.engine.journal[0].aborted

    assert _run(scene, ask)
    assert session.counters["undelivered_turns"] == 1


def test_sessions_side_by_side_stay_apart(stage, spell, words):
    scene = stage(lambda prompt: spell.bytewise(f"I saw {len(prompt)}.{words.END}"))
    sessions = [scene.open() for _ in range(16)]

    async def converse(clients):
        async with asyncio.TaskGroup() as tasks:
            for session in sessions:
                client = clients.for_session(session)
                tasks.create_task(_converse(client, words, 2, stream=False))

    _run(scene, converse)
    for session in sessions:
        mine = [e for e in scene.engine.journal if e.request_id.startswith(f"e1-{session._tag}")]
        words.check_exact(scene.gateway.close_session(session).rows, mine)


def test_the_gateway_stops_though_a_call_is_in_flight(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab"), delay_s=30)])
    session = scene.open(turn_timeout_s=60)

    async def main():
        async with _serving(scene) as clients, asyncio.TaskGroup() as tasks:
            client = clients.for_session(session)
            call = client.chat.completions.create(model="tiny", messages=words.FIRST)
            asked = tasks.create_task(_ignoring_errors(call))
            await asyncio.sleep(0.1)
            scene.gateway.close_session(session)
            await asked
        return time.monotonic()

    start = time.monotonic()
    assert asyncio.run(main()) - start < 20


async def _ignoring_errors(call):
    with contextlib.suppress(Exception):
        await call


def test_a_reply_over_http_does_not_wait_for_acknowledgements(stage, spell, words, monkeypatch):
    """Without TCP_NODELAY a reply sent in two parts waits 40 ms for the first one's ACK."""
    set_there = []
    connection_made = http_server._Protocol.connection_made

    def made(self, transport):
        connection_made(self, transport)
        at = transport.get_extra_info("socket")
        set_there.append(at.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(http_server._Protocol, "connection_made", made)
    scene = stage(lambda _: spell.canonical(words.ANSWER + words.END))
    session = scene.open()

    async def ask(clients):
        client = clients.for_session(session)
        await client.chat.completions.create(model="tiny", messages=words.FIRST)

    _run(scene, ask)
    assert set_there
    assert all(set_there)
