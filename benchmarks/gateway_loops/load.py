"""The client: conversations that grow turn by turn, as agents make them.

Every turn sends the complete conversation so far, as OpenAI clients do: the system prompt, then
user messages of `new_tokens` each and the received replies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import aiohttp
import msgspec

from .texts import text_of

_TIMEOUT_S = 60.0
MAX_MESSAGES = 30_000
"""The most messages of a request; with more it would exceed the limit on JSON values."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A conversation: `num_turns` user messages of `new_tokens` tokens each."""

    num_turns: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A received reply; times in seconds."""

    number: int
    latency_s: float


async def play(
    url: str, keys: Sequence[str], shape: Shape, *, concurrent: int, turns_per_s: float = 0.0
) -> tuple[list[Turn], float]:
    """Play one conversation for each key, `at_once` at a time; return all turns, and the time that
    they took.

    Each turn follows the one before at once; or, with `turns_per_s`, at its due time, from which
    its wait counts, whenever it was sent.

    Raises:
        RuntimeError: a reply was not 200.
    """
    turns: list[Turn] = []
    text = text_of(shape.new_tokens)
    waiting, began = iter(keys), list[str]()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    start = time.perf_counter()
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
        asyncio.TaskGroup() as tasks,
    ):

        async def worker() -> None:
            for key in waiting:
                clock = None
                if turns_per_s:
                    clock = _Clock(start + len(began) / turns_per_s, concurrent / turns_per_s)
                began.append(key)
                turns.extend(await _converse(http, url, key, shape, text, clock))

        for _ in range(concurrent):
            tasks.create_task(worker())
    return turns, time.perf_counter() - start


def largest(size_bytes: int) -> list[tuple[str, bytes]]:
    """Return large requests that are slow in different ways, as pairs of the end of a path and a
    body."""
    prose = text_of(300)
    prose *= size_bytes // len(prose)
    user = {"role": "user", "content": "?"}
    function = {"name": "f", "description": prose}
    empty = [user, {"role": "assistant", "content": "!"}] * (MAX_MESSAGES // 2)
    asked: list[tuple[str, dict[str, object]]] = [
        ("completions", {"prompt": prose}),
        ("completions", {"prompt": "0123456789" * (size_bytes // 10)}),
        ("completions", {"prompt": [1] * (size_bytes // 2 - 100)}),
        ("chat/completions", {"messages": [user | {"content": prose}]}),
        ("chat/completions", {"messages": [user | {"content": "<|im_end|>" * (size_bytes // 10)}]}),
        ("chat/completions", {"messages": empty}),
        ("chat/completions", {"messages": [user], "tools": [{"function": function}]}),
        ("messages", {"max_tokens": 1, "messages": [user | {"content": prose}]}),
        ("responses", {"input": prose}),
    ]
    return [(path, msgspec.json.encode({"model": "m"} | body)) for path, body in asked]


async def play_with_requests(
    url: str,
    keys: Sequence[str],
    shape: Shape,
    requests: Sequence[tuple[str, bytes]],
    key: str,
    *,
    turns_per_s: float,
) -> tuple[list[Turn], list[float]]:
    """Return the turns of `play` while `requests` of another client go to the same gateway under
    `key`, one after the other, again and again; and the time of each of these.

    Raises:
        RuntimeError: a reply of the conversations was not 200, or one of the requests failed.
    """
    took: list[float] = []

    async def ask() -> None:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        base = url.removesuffix("chat/completions")
        async with aiohttp.ClientSession(timeout=timeout) as http:
            for path, body in cycle(requests):
                start = time.perf_counter()
                async with http.post(base + path, data=body, headers=headers) as answer:
                    said = await answer.read()
                    if answer.status >= 500:
                        raise RuntimeError(f"{path} answered {answer.status}: {said[:200]!r}")
                took.append(time.perf_counter() - start)

    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask())
        concurrent = len(keys)
        turns, _ = await play(url, keys, shape, concurrent=concurrent, turns_per_s=turns_per_s)
        asking.cancel()
    return turns, took


@dataclass(frozen=True, slots=True)
class _Clock:
    """The due times of the turns of a conversation."""

    start: float
    every_s: float

    async def wait(self, number: int) -> float:
        """Wait until the turn is due; return that time."""
        due = self.start + number * self.every_s
        await asyncio.sleep(max(due - time.perf_counter(), 0.0))
        return due


async def _converse(
    http: aiohttp.ClientSession,
    url: str,
    key: str,
    shape: Shape,
    text: str,
    clock: _Clock | None,
) -> list[Turn]:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    # written once and extended, so that the client's own work does not grow with the conversation
    body = bytearray(b'{"model":"m","messages":[{"role":"system","content":"Answer."}')
    turns: list[Turn] = []
    for number in range(shape.num_turns):
        asked = {"role": "user", "content": f"{number}: {text}"}
        body += b"," + msgspec.json.encode(asked)
        start = time.perf_counter() if clock is None else await clock.wait(number)
        async with http.post(url, data=bytes(body) + b"]}", headers=headers) as answer:
            data = await answer.read()
            latency_s = time.perf_counter() - start
            if answer.status != 200:
                raise RuntimeError(f"{url} answered {answer.status}: {data[:500]!r}")
        turns.append(Turn(number, latency_s))
        message = msgspec.json.decode(data)["choices"][0]["message"]
        body += b"," + msgspec.json.encode(message)
    return turns
