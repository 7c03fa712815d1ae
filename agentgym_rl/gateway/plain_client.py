"""The SDK's client, spared its work on chat requests that are plain JSON as they are.

For every member of every message, the SDK (2.54 to 3.54) tries each type that a message may have:
a fifth of the CPU time of a process that plays short episodes. Nothing of a chat request has to be
renamed, so messages and tools made of dicts, lists and scalars travel as `extra_body`, which the
SDK sends as it is. Others (its own objects, iterators, `omit`) go the usual way.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from openai import AsyncOpenAI
from openai.resources.chat import AsyncChat, AsyncCompletions

_SCALARS = frozenset({str, int, float, bool, type(None)})


class PlainAsyncOpenAI(AsyncOpenAI):
    """Sends what `AsyncOpenAI` sends."""

    @cached_property
    def chat(self) -> AsyncChat:
        return _Chat(self)


class _Chat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _Completions(self._client)


class _Completions(AsyncCompletions):
    async def create(self, **options: Any) -> Any:
        given = {name: options[name] for name in ("messages", "tools") if name in options}
        # What a caller puts there has the last word already.
        body = options.get("extra_body")
        if "messages" in given and not body and all(_plain(value) for value in given.values()):
            options = {k: v for k, v in options.items() if k != "tools"}
            options |= {"messages": [], "extra_body": given}
        return await super().create(**options)


def _plain(value: object) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(_plain, value.values()))  # pyright: ignore
    if kind is list:
        return all(map(_plain, value))  # pyright: ignore
    return kind in _SCALARS
