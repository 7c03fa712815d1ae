"""OpenAI's completions: of chats, and of plain prompts, which need no roles and no template.

A reply is one JSON object, or server-sent events; each sample is one choice. Parameters of
`/v1/completions` that are ignored, because they cannot change a reply here: user.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from agentgym_rl.gateway.dialects import Dialect, Reply, Route, Writer, total_usage
from agentgym_rl.gateway.dialects.formats import Served, WireFormat
from agentgym_rl.gateway.errors import ApiError, bad_request, context_overflow, unsupported
from agentgym_rl.gateway.messages import reasoning_keys
from agentgym_rl.gateway.parsers import Event, Reasoning
from agentgym_rl.gateway.request.body import MAX_VALUES, StreamOptions, decode, num_values
from agentgym_rl.gateway.request.chat_request import (
    MAX_SAMPLES,
    MAX_SEED,
    MAX_TOP_K,
    MIN_SEED,
    ChatRequest,
)
from agentgym_rl.gateway.request.client_sampling import (
    BIASED,
    body_left_to_session,
    is_neutral,
    refused,
)
from agentgym_rl.gateway.request.offered_tools import text_of_call
from agentgym_rl.gateway.session.session import Session
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gateway.turn import Turn

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


class _ChoicesWriter(Writer):
    """A writer of one choice for each sample. Log-probs come with the finish, all at once."""

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, request: ChatRequest, turns: Sequence[Reply], *, model: str) -> None:
        self._request = request
        self._turns = turns
        id, created = f"{self.prefix}-{turns[0].id}", int(time.time())
        self._head = {"id": id, "created": created, "model": model}

    @abstractmethod
    def choice(self, turn: Reply, *, whole: bool) -> dict[str, Any]:
        """Return the choice of a committed turn, without the content if that was streamed."""

    def whole(self) -> bytes:
        choices = [self.choice(turn, whole=True) for turn in self._turns]
        head = {**self._head, "object": self.whole_object}
        return _encode({**head, "choices": choices, "usage": total_usage(self._turns)})

    def end(self) -> bytes:
        chunks = [self._chunk([self.choice(turn, whole=False)]) for turn in self._turns]
        if self._request.include_usage:
            chunks.append(self._chunk([], usage=total_usage(self._turns)))
        return b"".join((*chunks, DONE))

    def _chunk(self, choices: list[Any], **more: Any) -> bytes:
        head = {**self._head, "object": self.chunk_object}
        return b"data: " + _encode({**head, "choices": choices, **more}) + b"\n\n"


class ChatDialect(Dialect):
    """The dialect of `POST /v1/chat/completions`."""

    path = "/v1/chat/completions"

    def read(self, session: Session, body: bytes) -> ChatRequest:
        return session.bodies.read(body)

    def writer(
        self, session: Session, request: ChatRequest, turns: Sequence[Reply], *, model: str
    ) -> Writer:
        return ChatWriter(request, turns, model=model)


class ChatWriter(_ChoicesWriter):
    """A writer that sends text as it is sampled and tool calls as their blocks close."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, request: ChatRequest, turns: Sequence[Reply], *, model: str) -> None:
        super().__init__(request, turns, model=model)
        self._num_calls = [0] * len(turns)

    def begin(self) -> bytes:
        opening = {"role": "assistant", "content": ""}
        return b"".join(self._piece(turn, opening) for turn in self._turns)

    def events(self, turn: Reply, events: Sequence[Event]) -> bytes:
        return b"".join(self._piece(turn, self._delta(turn, event)) for event in events)

    def choice(self, turn: Reply, *, whole: bool) -> dict[str, Any]:
        said = {"message": self._shown(turn.message)} if whole else {"delta": {}}
        ending = {"logprobs": turn.logprobs(), "finish_reason": turn.finish_reason}
        return {"index": turn.index, **said, **ending}

    def _delta(self, turn: Reply, event: Event) -> dict[str, Any]:
        """Return the delta: a piece of content or reasoning, or a complete tool call."""
        if isinstance(event, str):
            return {"content": event}
        if isinstance(event, Reasoning):
            return reasoning_keys(event.text)
        position = self._num_calls[turn.index]
        self._num_calls[turn.index] += 1
        function = {"name": event.name, "arguments": event.arguments}
        call = {"id": turn.call_id(position, event), "type": "function", "function": function}
        return {"tool_calls": [{"index": position, **self._shown_call(call)}]}

    def _shown(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message for the client, whose tools may take texts."""
        if not self._request.text_tools or "tool_calls" not in message:
            return message
        return {**message, "tool_calls": [self._shown_call(c) for c in message["tool_calls"]]}

    def _shown_call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call["function"]
        if function["name"] not in self._request.text_tools:
            return call
        custom = {"name": function["name"], "input": text_of_call(function["arguments"])}
        return {"id": call["id"], "type": "custom", "custom": custom}

    def _piece(self, turn: Reply, delta: Mapping[str, Any]) -> bytes:
        choice = {"index": turn.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._chunk([choice])


_MAX_TOKENS = 16
"""The limit of a reply if the request sets none, as in OpenAI."""

Zero = Annotated[float, Meta(ge=0, le=0)]
Text = Annotated[str, Meta(min_length=1)]
Seed = Annotated[int, Meta(ge=MIN_SEED, le=MAX_SEED)]
TokenId = Annotated[int, Meta(ge=0)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
_ONE = {"anyOf": [{"items": {"type": "integer"}}, {"maxItems": 1}]}


class SamplingFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters that chat completions and completions share."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] | None = None
    seed: Seed | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=4)] | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None


class CompletionsRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    model: str
    prompt: (
        Text
        | Annotated[list[Text | TokenId | TokenIds], Meta(min_length=1, extra_json_schema=_ONE)]
    )
    """A text or token ids, possibly in an array with one element."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=1)] | None = None
    """The choice of log-probs: 0 and 1 return those of the sampled tokens, the only recorded."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    """The flag that adds `prompt_token_ids` and `token_ids` to choices, as servers do."""
    echo: Literal[False] | None = None
    suffix: None = None
    best_of: Literal[1] | None = None
    logit_bias: dict[str, Zero] | None = None
    user: str | None = None


class CompletionsDialect(Dialect):
    """The dialect of `POST /v1/completions`."""

    path = "/v1/completions"

    def __init__(self, chat: ChatFormat, *, max_model_len: int) -> None:
        self._chat = chat
        self._max_model_len = max_model_len

    def check_size(self, body: bytes) -> None:
        most = self._max_model_len + MAX_VALUES
        if (count := num_values(body, most=most)) > most:
            raise context_overflow(self._max_model_len, count, param="prompt")

    def read(self, session: Session, body: bytes) -> ChatRequest:
        body, ignored = body_left_to_session(body, session.config.sampling)
        asked = decode(body, CompletionsRequest, refusal=_unsupported)
        prompt = _prompt(asked.prompt)
        if not isinstance(prompt, str) and len(prompt) >= self._max_model_len:
            raise context_overflow(self._max_model_len, len(prompt), param="prompt")
        shown = prompt if isinstance(prompt, str) else self._chat.text(self._known(prompt))
        return ChatRequest(
            messages=[{"role": "user", "content": shown}],
            n=asked.n or 1,
            stream=bool(asked.stream),
            include_usage=_includes_usage(asked),
            logprobs=asked.logprobs is not None,
            max_tokens=asked.max_tokens or _MAX_TOKENS,
            temperature=asked.temperature,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            top_k=max(asked.top_k or 0, 0),
            min_p=asked.min_p or 0.0,
            seed=asked.seed,
            stop=(asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
            prompt=prompt,
            return_token_ids=bool(asked.return_token_ids),
            ignored=ignored,
        )

    def writer(
        self, session: Session, request: ChatRequest, turns: Sequence[Reply], *, model: str
    ) -> Writer:
        return CompletionsWriter(request, turns, model=model)

    def _known(self, ids: Sequence[int]) -> Sequence[int]:
        if not self._chat.knows(max(ids)):
            raise bad_request(f"prompt: the model has no token {max(ids)}", param="prompt")
        return ids


class CompletionsWriter(_ChoicesWriter):
    """A writer that sends text as it is sampled; token ids come at once with the finish."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def begin(self) -> bytes:
        return b""

    def events(self, turn: Reply, events: Sequence[Event]) -> bytes:
        texts = (event for event in events if isinstance(event, str))
        return b"".join(self._chunk([_choice(turn, text)]) for text in texts)

    def choice(self, turn: Reply, *, whole: bool) -> dict[str, Any]:
        assert isinstance(turn, Turn), "only our own engines continue a prompt"
        choice = _choice(turn, turn.message["content"] if whole else "")
        choice |= {"logprobs": _logprobs(turn), "finish_reason": turn.finish_reason}
        if self._request.return_token_ids:
            choice |= {"prompt_token_ids": turn.prompt.whole(), "token_ids": turn.sample.ids}
        return choice


def _choice(turn: Reply, text: str) -> dict[str, Any]:
    return {"index": turn.index, "text": text, "logprobs": None, "finish_reason": None}


def _logprobs(turn: Turn) -> dict[str, Any] | None:
    """Return the log-probs in the shape of completions; offsets count from the reply's start."""
    recorded = turn.logprobs()
    if recorded is None:
        return None
    tokens = [entry["token"] for entry in recorded["content"]]
    logprobs = [entry["logprob"] for entry in recorded["content"]]
    return {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": [{t: lp} for t, lp in zip(tokens, logprobs, strict=True)],
        "text_offset": list(accumulate(map(len, tokens[:-1]), initial=0)) if tokens else [],
    }


def _includes_usage(asked: CompletionsRequest) -> bool:
    options = asked.stream_options
    if options is not None and not asked.stream:
        raise bad_request("stream_options needs stream.", param="stream_options")
    return options is not None and bool(options.include_usage)


def _prompt(given: str | Sequence[Any]) -> str | list[int]:
    """Return the only prompt."""
    if not isinstance(given, str) and len(given) == 1 and not isinstance(given[0], int):
        given = given[0]
    if not given:
        raise bad_request("prompt must not be empty.", param="prompt")
    if isinstance(given, str) or all(isinstance(id, int) for id in given):
        return given if isinstance(given, str) else list(given)
    raise unsupported("prompt", "got several; send a request for each")


def _unsupported(raw: Mapping[str, Any]) -> ApiError | None:
    """Return the error for the first parameter in an unreadable request that OpenAI knows and this
    gateway does not."""
    for name, why in _NOT_HERE.items():
        if not is_neutral(name, raw.get(name)):
            return refused(name, why)
    return None


_NOT_HERE = {
    "echo": "the reply is what was sampled",
    "suffix": "the engine only continues",
    "best_of": "ask for n, and choose",
    **BIASED,
}


class Completions(WireFormat):
    """OpenAI's completions: of chats, and of plain prompts where the tokenizer is known."""

    order: ClassVar[int] = 0

    def routes(self, served: Served) -> Sequence[Route]:
        chats = ChatDialect()
        if served.chat is None:
            return (chats,)
        return chats, CompletionsDialect(served.chat, max_model_len=served.max_model_len)


FORMAT = Completions()
