"""The exact tokens a request is answered from: those of the turns before, plus what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .chat import ChatFormat
from .errors import bad_request, context_overflow
from .messages import text_of, tools_key
from .requests import ChatRequest
from .tree import Context, Place, Sampled, Tree

_OFF_LOOP_CHARS = 50_000
"""Longer texts are tokenised in a thread: about 15 ms, and the event loop serves others."""


async def prepare_context(
    tree: Tree, chat: ChatFormat, request: ChatRequest, *, max_model_len: int
) -> tuple[Context, list[int]]:
    """The node a reply to `request` hangs on, and the engine's input.

    Raises:
        ApiError: 400 when the template refuses the messages or no room is left to sample.
    """
    place = tree.locate(tools_key(request.tools), request.messages)
    context = place.known
    if context is None:
        base = _base(place, chat)
        ids = await _new_tokens(place, base, chat, request)
        context = tree.extend(place, ids, base=base)
    prompt = context.path()
    if len(prompt) >= max_model_len:
        raise context_overflow(max_model_len, len(prompt))
    return context, prompt


async def count_prompt(tree: Tree, chat: ChatFormat, request: ChatRequest) -> int:
    """Tokens that a reply to `request` would be sampled from; no turn comes of asking.

    Raises:
        ApiError: 400 when the template refuses the messages.
    """
    place = tree.locate(tools_key(request.tools), request.messages)
    if place.known is not None:
        return len(place.known.path())
    base = _base(place, chat)
    num_before = 0 if base is None else len(base.context.path()) + len(base.ids)
    return num_before + len(await _new_tokens(place, base, chat, request))


def _base(place: Place, chat: ChatFormat) -> Sampled | None:
    """The sampled turn whose tokens can be continued, if there is one."""
    anchor = place.anchor
    whole = place.edited is None and chat.bridges
    return anchor if isinstance(anchor, Sampled) and whole else None


async def _new_tokens(
    place: Place, base: Sampled | None, chat: ChatFormat, request: ChatRequest
) -> list[int]:
    try:
        if base is None:
            return await _tokenise(chat.prompt, request.messages, request.tools)
        ids = await _tokenise(
            lambda tail, tools: chat.suffix(base.message, tail, tools), place.tail, request.tools
        )
    except ValueError as error:
        raise bad_request(str(error), param="messages") from error
    # a turn that was cut (length, stop string) never closed itself: the template's close follows
    closed = bool(base.ids) and base.ids[-1] == chat.close_id
    return ids if closed or chat.close_id is None else [chat.close_id, *ids]


async def _tokenise(
    tokenise: Callable[..., list[int]],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> list[int]:
    if sum(len(text_of(message.get("content"))) for message in messages) < _OFF_LOOP_CHARS:
        return tokenise(messages, tools)
    return await asyncio.to_thread(tokenise, messages, tools)
