"""The exact tokens a request is answered from: those of the turns before, plus what is new."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from agentgym_rl.prompt import Prompt

from . import canary
from .chat import ChatFormat
from .errors import bad_request, context_overflow
from .messages import message_key, text_of, thoughts_of, with_thoughts
from .requests import ChatRequest
from .sessions import Session
from .tree import Context, ForkCause, Place, Sampled

ThinkingHistory = Literal["as_generated", "template"]

_OFF_LOOP_CHARS = 50_000
"""Longer texts are tokenised in a thread: about 15 ms, and the event loop serves others."""


async def prepare_context(
    session: Session, chat: ChatFormat, request: ChatRequest, *, max_model_len: int
) -> tuple[Context, Prompt]:
    """The node a reply to `request` hangs on, and the engine's input.

    Raises:
        ApiError: 400 when the template refuses the messages or no room is left to sample.
    """
    if request.prompt is not None:
        return await _raw_context(session, chat, request.prompt, max_model_len=max_model_len)
    with _nesting_refused():
        place = session.locate(request)
    context = place.known
    if context is None:
        new = await _tokenise(_writer(session, chat, request, place))
        context = session.tree.extend(place, new.ids, base=new.base, cause=new.cause)
    prompt = context.path
    if len(prompt) >= max_model_len:
        raise context_overflow(max_model_len, len(prompt))
    if context.base is not None and session.draws_canary():
        kwargs = session.template_kwargs(request)
        fed = canary.Fed(prompt, context, request.messages, request.tools, kwargs)
        session.add_canary(canary.start(chat, fed))
    return context, prompt


async def _raw_context(
    session: Session, chat: ChatFormat, prompt: str | Sequence[int], *, max_model_len: int
) -> tuple[Context, Prompt]:
    """The node for a prompt that no template writes. It stands on an earlier turn if it continues
    its very tokens; a text is never fitted to them, its own tokens are what counts."""
    if not isinstance(prompt, str):
        ids = list(prompt)
    elif len(prompt) < _OFF_LOOP_CHARS:
        ids = chat.encode_raw(prompt)
    else:
        ids = await asyncio.to_thread(chat.encode_raw, prompt)
    if len(ids) >= max_model_len:
        raise context_overflow(max_model_len, len(ids))
    return session.tree.continue_ids(ids), Prompt(ids)


@contextmanager
def _nesting_refused() -> Iterator[None]:
    """Tools and arguments that are nested too deeply for a JSON writer are the client's fault."""
    try:
        yield
    except RecursionError as error:
        raise bad_request("tools or arguments are nested too deeply", param="tools") from error


async def count_prompt(session: Session, chat: ChatFormat, request: ChatRequest) -> int:
    """Tokens that a reply to `request` would be sampled from; asking leaves no trace.

    Raises:
        ApiError: 400 when the template refuses the messages.
    """
    with _nesting_refused():
        place = session.tree.locate(
            request.messages, tools=request.tools, template_kwargs=request.template_kwargs
        )
    if place.known is not None:
        return len(place.known.path)
    new = await _tokenise(_writer(session, chat, request, place))
    return len(new.ids) + (0 if new.base is None else len(new.base.path))


@dataclass(frozen=True, slots=True)
class _New:
    """Tokens to add, behind `base` or as a whole prompt; and why not behind the last turn."""

    ids: list[int]
    base: Sampled | None = None
    cause: ForkCause | None = None


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes what a request adds to a place of the tree."""

    chat: ChatFormat
    place: Place
    tools: Sequence[Mapping[str, Any]] | None
    kwargs: Mapping[str, Any]
    thinking: ThinkingHistory

    def write(self) -> _New:
        """Continue the last turn found if that can be done; else render everything.

        Raises:
            ValueError: the template refuses the messages.
        """
        base = self.place.anchor
        if not isinstance(base, Sampled):
            return _New(self._whole())
        if self.thinking == "template" and (ids := self._without_thoughts(base)) is not None:
            return _shared(base, ids, "think_drop")
        tail = self._tail(base) if self._is_local() else None
        if tail is None:
            return _shared(base, self._whole(), "template")
        glued = self._glued(base, tail)
        return _shared(base, self._whole(), "seam") if glued is None else _New(glued, base)

    def _whole(self) -> list[int]:
        return self.chat.prompt(self.place.messages, self.tools, self.kwargs)

    def _is_local(self) -> bool:
        """Whether the new messages change nothing that the template wrote before them."""
        tail = self.place.tail
        if any(m["role"] == "system" for m in tail) and self.chat.moves_systems(
            self.place.messages, self.tools
        ):
            return False
        return self.place.edited is None or self.chat.shape(self.kwargs).edits

    def _tail(self, base: Sampled) -> list[int] | None:
        """The tokens that follow the turn, from the first rung whose rendering is not refused."""
        chat, place = self.chat, self.place
        for rung in chat.shape(self.kwargs).rungs:
            try:
                if rung == "sentinel":
                    return chat.suffix(base.message, place.tail, self.tools, self.kwargs)
                new = len(place.tail)
                return chat.counted_suffix(place.messages, new, self.tools, self.kwargs)
            except ValueError:  # of roles in an odd order, say; the whole may still be accepted
                continue
        return None

    def _glued(self, base: Sampled, tail: list[int]) -> list[int] | None:
        """The tail behind what was sampled; None if the two do not fit.

        A turn that was cut (length, stop string) never ended itself: the template's end follows.
        A token that ends this turn and opens the next one is there once.
        """
        last = base.ids[-1] if base.ids else None
        if self.chat.close_id is not None:
            return tail if last == self.chat.close_id else [self.chat.close_id, *tail]
        if last not in self.chat.opener_ids:
            return tail
        return tail[1:] if tail[:1] == [last] else None

    def _without_thoughts(self, base: Sampled) -> list[int] | None:
        """The whole prompt, if a user speaks and the template then leaves out what the turns
        to be continued thought."""
        if not any(message["role"] == "user" for message in self.place.tail):
            return None
        kept = {node.key for node in _path(base) if thoughts_of(node.message)}
        if not kept:
            return None
        mark = secrets.token_hex(8)  # a thought's own words may stand elsewhere too
        said = self.place.messages[: len(self.place.messages) - len(self.place.tail)]
        marked = [
            with_thoughts(message, f"{mark}{index}") if message_key(message) in kept else message
            for index, message in enumerate(said)
        ]
        shown = self._rendered([*marked, *self.place.tail])
        thoughts = [mine for mine, message in zip(marked, said, strict=True) if mine is not message]
        if all(thoughts_of(message) in shown for message in thoughts):
            return None
        return self.chat.encode(self._rendered(self.place.messages))

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self.chat.render(messages, self.tools, kwargs=self.kwargs)


def _writer(session: Session, chat: ChatFormat, request: ChatRequest, place: Place) -> _Writer:
    kwargs = session.template_kwargs(request)
    return _Writer(chat, place, request.tools, kwargs, session.config.thinking_history)


def _shared(last: Sampled, ids: list[int], cause: ForkCause) -> _New:
    """A prompt rendered anew, standing on those turns before it whose very tokens it repeats."""
    base, start = None, 0
    for node in reversed(_path(last)):
        own = node.context.ids + node.ids
        if ids[start : start + len(own)] != own:
            break
        base, start = node, start + len(own)
    return _New(ids[start:], base, cause)


def _path(node: Sampled | None) -> list[Sampled]:
    """The turns whose tokens it stands on, itself first."""
    found: list[Sampled] = []
    while node is not None:
        found.append(node)
        node = node.context.base
    return found


async def _tokenise(writer: _Writer) -> _New:
    place = writer.place
    parts = place.tail if isinstance(place.anchor, Sampled) else place.messages
    try:
        size = sum(len(text_of(message.get("content"))) for message in parts)
        if size < _OFF_LOOP_CHARS and writer.chat.is_probed(writer.kwargs):
            return writer.write()
        return await asyncio.to_thread(writer.write)
    except (ValueError, RecursionError) as error:
        raise bad_request(str(error), param="messages") from error
