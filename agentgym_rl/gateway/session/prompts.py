"""The exact prompt tokens of a request: those of the turns before, plus the new messages."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace

from agentgym_rl.core import ConfigError
from agentgym_rl.gateway.errors import ApiError, bad_request, context_overflow
from agentgym_rl.gateway.messages import (
    message_key,
    num_leading,
    text_of,
    thoughts_of,
    with_thoughts,
)
from agentgym_rl.gateway.request.body import INLINE_SIZE, in_thread_if_large
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.template.chat_format import ChatFormat, TooLong

from .nodes import Context, ForkCause, Sampled
from .session import Session
from .tree import Location
from .turn_check import Fed

ThinkingHistory = Literal["as_generated", "template"]

_OVERFLOW = "context_length_exceeded"
_MESSAGE_SIZE = 50
"""The cost of rendering a message in addition to its text, in characters."""
_PLACE_SIZE = 20
"""The cost of looking a message up in the tree, in characters."""


async def prepare_context(
    session: Session, chat: ChatFormat, request: ChatRequest, *, max_model_len: int, size: int
) -> tuple[ChatRequest, Context]:
    """Return the request as it is answered, perhaps without its oldest messages, and the node of a
    reply to it, whose `path` is the engine's input. `size`: the number of bytes of the request that
    were read for the first time.

    Raises:
        ApiError: 400, the template refuses the messages or no room is left to sample.
    """
    if request.prompt is not None:
        prompt = request.prompt
        return request, await _raw_context(session, chat, prompt, max_model_len=max_model_len)
    preparation = _Preparation(session, chat, max_model_len)
    request = await _apart(session, _understood(chat, request), size)
    try:
        return await _chat_context(preparation, request, size)
    except ApiError as error:
        if not request.truncates or error.code != _OVERFLOW:
            raise
        cut = await _truncated(preparation, request)
        if cut is None:
            raise
        return await _chat_context(preparation, cut, INLINE_SIZE)


@dataclass(frozen=True, slots=True)
class _Preparation:
    """A request in preparation: its session, chat format and limit of tokens."""

    session: Session
    chat: ChatFormat
    max_model_len: int


async def _chat_context(
    preparation: _Preparation, request: ChatRequest, size: int
) -> tuple[ChatRequest, Context]:
    session, chat, max_model_len = preparation.session, preparation.chat, preparation.max_model_len
    place, begun = await _begun(preparation, request, size)
    session.take(place)
    context = place.known
    if context is None:
        new = await _tokenised(preparation, request, place, begun, size)
        context = session.tree.extend(place, new.ids, base=new.base, cause=new.cause)
    if len(context.path) >= max_model_len:
        raise context_overflow(max_model_len, len(context.path))
    if begun is not None:
        return replace(request, messages=[*request.messages[:-1], begun.message]), context
    if context.base is not None and (checks := session.drawn_checks()):
        fed = Fed(context, request.messages, request.tools, session.template_kwargs(request))
        session.checked += [check.start(chat, fed, size=size) for check in checks]
    return request, context


async def _raw_context(
    session: Session, chat: ChatFormat, prompt: str | Sequence[int], *, max_model_len: int
) -> Context:
    """Return the node of a prompt without a template, after an earlier turn whose exact tokens it
    continues, if any. A text is always tokenised on its own, never to match those tokens."""
    if isinstance(prompt, str):
        try:
            ids = await in_thread_if_large(len(prompt), chat.encode_raw, prompt, most=max_model_len)
        except TooLong as error:
            raise _overflow(error, max_model_len, param="prompt") from error
    else:
        ids = list(prompt)
    if len(ids) >= max_model_len:
        raise context_overflow(max_model_len, len(ids), param="prompt")
    base, start = await in_thread_if_large(8 * len(ids), session.tree.longest_beginning, ids)
    return session.tree.continue_ids(ids, base, start)


def _understood(chat: ChatFormat, request: ChatRequest) -> ChatRequest:
    """Return a request with only those template arguments that have an effect. Tools that this
    model cannot use are a 400."""
    try:
        chat.check_tools(request.tools)
        kwargs = chat.arguments.of(request.template_kwargs)
    except ConfigError as error:
        raise bad_request(str(error), param="tools") from error
    except RecursionError as error:
        why = "chat_template_kwargs are nested too deeply"
        raise bad_request(why, param="chat_template_kwargs") from error
    return replace(request, template_kwargs=kwargs)


async def _apart(session: Session, request: ChatRequest, size: int) -> ChatRequest:
    """Return a request in which turns that the client has joined are split again."""
    looks = size + _PLACE_SIZE * len(request.messages)
    return await in_thread_if_large(looks, session.taken_apart, request)


async def _located(session: Session, request: ChatRequest, size: int) -> Location:
    """Return the location of the conversation. Tools and arguments that are nested too deeply for a
    JSON writer are a 400."""
    try:
        looks = size + _PLACE_SIZE * len(request.messages)
        return await in_thread_if_large(looks, session.locate, request)
    except RecursionError as error:
        raise bad_request("tools or arguments are nested too deeply", param="tools") from error


@dataclass(frozen=True, slots=True)
class _Begun:
    """The beginning of a reply, as the client sent it. `cut`: the recorded reply that it repeats,
    if that was cut at the maximum length; then the exact tokens are continued."""

    message: Mapping[str, Any]
    cut: Sampled | None


async def _begun(
    preparation: _Preparation, request: ChatRequest, size: int
) -> tuple[Location, _Begun | None]:
    """Return the location of a reply, and the beginning of the reply if the request has one."""
    if not request.continues:
        return await _located(preparation.session, request, size), None
    *before, message = request.messages
    place = await _located(preparation.session, replace(request, messages=before), size)
    cut = preparation.session.tree.continued(place, message)
    if cut is None or not _was_cut(preparation.chat, cut):
        return place.beginning(message, None), _Begun(message, None)
    return place.beginning(message, cut), _Begun(cut.message, cut)


def _was_cut(chat: ChatFormat, node: Sampled) -> bool:
    """Return whether a reply was cut within its text, at a limit of length."""
    text, own = text_of(node.message.get("content")).rstrip(), chat.text(node.ids).rstrip()
    ended = not node.ids or node.ids[-1] in chat.stop_token_ids
    if ended or not text or not own or node.message.get("tool_calls"):
        return False
    return own.endswith(text) or text.endswith(own)  # thoughts precede it, or a beginning


async def count_prompt(
    session: Session, chat: ChatFormat, request: ChatRequest, *, max_model_len: int, size: int
) -> int:
    """Count the tokens from which a reply to `request` would be sampled; change nothing.

    Raises:
        ApiError: 400, the template refuses the messages, or they are too long to be counted.
    """
    preparation = _Preparation(session, chat, max_model_len)
    request = await _apart(session, _understood(chat, request), size)
    return await _counted(preparation, request, size)


async def _counted(preparation: _Preparation, request: ChatRequest, size: int) -> int:
    place, begun = await _begun(preparation, request, size)
    if place.known is not None:
        return len(place.known.path)
    new = await _tokenised(preparation, request, place, begun, size)
    return len(new.ids) + (0 if new.base is None else len(new.base.path))


async def _truncated(preparation: _Preparation, request: ChatRequest) -> ChatRequest | None:
    """Return the request without its oldest messages; None if even the last one is too long.

    System messages stay, and no result of a tool loses its call. A quarter of the context becomes
    free, or more if the reply may be longer. The last choice of messages to leave out is tried
    first, so that a conversation continues for some turns instead of forking at each.
    """
    session, messages = preparation.session, request.messages
    first = num_leading(messages)
    last = len(messages) - request.continues
    starts = [at for at in range(first + 1, last) if messages[at]["role"] != "tool"]
    wanted = min(request.max_tokens or math.inf, session.sampling.max_tokens)
    room = int(max(preparation.max_model_len // 4, min(wanted, preparation.max_model_len // 2)))

    async def cut(start: int, room: int) -> ChatRequest | None:
        kept = [*messages[:first], *messages[start:]]
        shorter = replace(request, messages=kept, truncated=True)
        try:
            fits = (
                await _counted(preparation, shorter, INLINE_SIZE) + room
                <= preparation.max_model_len
            )
        except ApiError:  # too long, or not what the template takes
            return None
        return shorter if fits else None

    known = next(
        (at for at in starts if (at, message_key(messages[at])) == session.kept_from), None
    )
    if known is not None and (found := await cut(known, 1)) is not None:
        return found
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if await cut(starts[middle], room) else (middle + 1, high)
    for start in starts[low:]:  # a template may refuse some
        if (found := await cut(start, room)) is not None:
            session.kept_from = start, message_key(messages[start])
            return found
    return await cut(starts[-1], 1) if starts else None


@dataclass(frozen=True, slots=True)
class _New:
    """The tokens to add behind `base`, or as a complete prompt. `cause`: the reason why they do not
    follow the last turn."""

    ids: list[int]
    base: Sampled | None = None
    cause: ForkCause | None = None


@dataclass(frozen=True, slots=True)
class _Writer:
    """A writer of the tokens that a request adds at a location of the tree."""

    chat: ChatFormat
    place: Location
    tools: Sequence[Mapping[str, Any]] | None
    kwargs: Mapping[str, Any]
    thinking: ThinkingHistory
    most: int
    """The number of tokens for which there is room."""
    begun: _Begun | None

    def size(self) -> int:
        """Return about how many characters `write` renders, without the tools. Counting stops at
        the size that needs a thread."""
        place = self.place
        alone = (
            isinstance(place.anchor, Sampled)
            and self.thinking != "template"
            and self.chat.shape(self.kwargs).rung == "sentinel"
            and self._is_local()
        )
        size = 0
        begun = [self.begun.message] if self.begun else []
        for message in [*begun, *(place.tail if alone else place.messages)]:
            size += _num_chars(message)
            if size >= INLINE_SIZE:
                break
        return size

    def write(self) -> _New:
        """Continue the last turn found if possible; else render everything.

        Raises:
            ValueError: the template refuses the messages.
        """
        base = self.place.anchor
        if not isinstance(base, Sampled):
            return _New(self._whole())
        if self.begun is not None and self.begun.cut is not None:
            return _New([], base)
        if self.thinking == "template" and (ids := self._without_thoughts(base)) is not None:
            return _shared(base, ids, "think_drop")
        tail = self._tail(base) if self._is_local() else None
        if tail is None:
            return _shared(base, self._whole(), "template")
        glued = self._glued(base, tail)
        return _shared(base, self._whole(), "seam") if glued is None else _New(glued, base)

    def _whole(self) -> list[int]:
        whole, begun = self.place.messages, self._opening
        return self.chat.prompt(whole, self.tools, self.kwargs, begun=begun, most=self.most)

    @property
    def _opening(self) -> Mapping[str, Any] | None:
        """Return the beginning of the reply, if there is one."""
        return None if self.begun is None else self.begun.message

    def _is_local(self) -> bool:
        """Return whether the new messages leave the template's earlier text unchanged."""
        tail = self.place.tail
        if any(m["role"] == "system" for m in tail) and self.chat.moves_systems(
            self.place.messages, self.tools
        ):
            return False
        return self.place.edited is None or self.chat.shape(self.kwargs).edits

    def _tail(self, base: Sampled) -> list[int] | None:
        """Return the tokens after the turn, from the first rung whose rendering is not refused."""
        chat, place = self.chat, self.place
        options: dict[str, Any] = {"begun": self._opening, "most": self.most}
        for rung in chat.shape(self.kwargs).rungs:
            try:
                if rung == "sentinel":
                    messages, new = base.message, place.tail
                    return chat.suffix(messages, new, self.tools, self.kwargs, **options)
                messages, count = place.messages, len(place.tail)
                return chat.counted_suffix(messages, count, self.tools, self.kwargs, **options)
            except ValueError:  # a role order, for example; the complete conversation may work
                continue
        return None

    def _glued(self, base: Sampled, tail: list[int]) -> list[int] | None:
        """Return the tail to append to the sampled tokens; None if the two do not fit.

        A turn that was cut (length, stop string) did not end itself, so the template's end follows.
        A token that ends this turn and opens the next one appears only once.
        """
        last, close = base.ids[-1] if base.ids else None, self.chat.close_of(base.message)
        if close is not None:
            if last == close:
                return tail
            return None if last in self.chat.close_ids else [close, *tail]
        if last not in self.chat.opener_ids:
            return tail
        return tail[1:] if tail[:1] == [last] else None

    def _without_thoughts(self, base: Sampled) -> list[int] | None:
        """Return the complete prompt if there is a new user message and the template then drops the
        thoughts of the turns to be continued, including empty ones; else None."""
        if not any(message["role"] == "user" for message in self.place.tail):
            return None
        kept = {node.key for node in base.chain() if thoughts_of(node.message)}
        drops = self.chat.shape(self.kwargs).drops_opening
        if not kept and not drops:
            return None
        mark = secrets.token_hex(8)  # a thought's own words may occur elsewhere
        messages = self.place.messages[: len(self.place.messages) - len(self.place.tail)]
        marked = [
            with_thoughts(message, f"{mark}{index}") if message_key(message) in kept else message
            for index, message in enumerate(messages)
        ]
        shown = self._rendered([*marked, *self.place.tail])
        thoughts = [
            mine for mine, message in zip(marked, messages, strict=True) if mine is not message
        ]
        if not drops and all(thoughts_of(message) in shown for message in thoughts):
            return None
        return self.chat.encode(self._rendered(self.place.messages), most=self.most)

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self.chat.rendering(self.kwargs, self._opening)(messages, self.tools)


def _shared(last: Sampled, ids: list[int], cause: ForkCause) -> _New:
    """Return a newly rendered prompt, based on the earlier turns whose exact tokens it repeats."""
    base, start = None, 0
    for node in last.chain():
        own = node.context.ids + node.ids
        if ids[start : start + len(own)] != own:
            break
        base, start = node, start + len(own)
    return _New(ids[start:], base, cause)


async def _tokenised(
    preparation: _Preparation,
    request: ChatRequest,
    place: Location,
    begun: _Begun | None,
    size: int,
) -> _New:
    """Return the tokens that a request adds at its location."""
    session, chat, most = preparation.session, preparation.chat, preparation.max_model_len
    kwargs, thinking = session.template_kwargs(request), session.config.thinking_history
    writer = _Writer(chat, place, request.tools, kwargs, thinking, most, begun)
    try:
        if size < INLINE_SIZE:
            size = writer.size() if chat.is_probed(kwargs) else INLINE_SIZE
        return await in_thread_if_large(size, writer.write)
    except TooLong as error:
        raise _overflow(error, writer.most) from error
    except (ValueError, RecursionError) as error:
        raise bad_request(str(error), param="messages") from error


def _overflow(error: TooLong, max_model_len: int, param: str = "messages") -> ApiError:
    return context_overflow(max_model_len, error.num_tokens, at_least=True, param=param)


def _num_chars(message: Mapping[str, Any]) -> int:
    """Return the number of characters in a message, including the arguments of its calls."""
    calls = message.get("tool_calls") or ()
    arguments = (call["function"].get("arguments") for call in calls)
    messages = sum(len(text) for text in arguments if isinstance(text, str))
    return _MESSAGE_SIZE + messages + len(text_of(message.get("content")))
