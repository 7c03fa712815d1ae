"""The client: conversations that grow turn by turn, as agents make them.

Every turn sends the whole conversation so far, as OpenAI clients do: the system prompt, then user
messages of `new_tokens` each and the replies that were got.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from .texts import text_of

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A conversation: `num_turns` user messages of `new_tokens` tokens each."""

    num_turns: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply that was waited for; times in seconds."""

    number: int
    latency_s: float


async def play(
    url: str, keys: Sequence[str], shape: Shape, *, concurrent: int, turns_per_s: float = 0.0
) -> tuple[list[Turn], float]:
    """Play one conversation for each key, so many at once; all turns, and how long it took.

    Each turn follows the one before at once; or, with `turns_per_s`, when its time has come, and
    it has waited from then on, whenever it was sent.

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


@dataclass(frozen=True, slots=True)
class _Clock:
    """When the turns of a conversation are due."""

    start: float
    every_s: float

    async def wait(self, number: int) -> float:
        """Return when the turn is due, and when that was."""
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
