"""One turn: a request, its sampled tokens as they arrive, and the resulting message. At a stop
string the engine ends the turn; the message ends before it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from agentgym_rl.core import (
    Delta,
    EngineError,
    FinishReason,
    RequestRefused,
    Sampler,
    SamplingParams,
    choices_of,
    set_of,
)
from agentgym_rl.gateway.request.body import INLINE_SIZE, TOKEN_SIZE, in_thread_if_large
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.request.client_sampling import refused
from agentgym_rl.gateway.session.nodes import Context, Sample, Sampled
from agentgym_rl.gateway.session.prompts import prepare_context
from agentgym_rl.gateway.session.session import Session
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gateway.template.detokenizer import Detokenizer
from agentgym_rl.runtime import ENGINE_CLOCK, together

from .dialects import OnEvents, Reply
from .errors import bad_request, session_closed
from .messages import reasoning_keys, text_of, thoughts_of
from .parsers import (
    PROMPT_END_TOKENS,
    Event,
    Grammars,
    Parser,
    ParserFactory,
    Reasoning,
    TextParser,
    ToolCall,
)


class StopCutter:
    """A filter that cuts streamed text before the first stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._hold = max(map(len, stops), default=1) - 1
        self._held = ""
        self.found: str | None = None
        """The stop string at which the text was cut."""

    def feed(self, text: str, *, last: bool) -> str:
        """Return the text that certainly comes before any stop string."""
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            first, self.found = min(found)
            return self._held[:first]
        certain = len(self._held) - (0 if last else self._hold)
        shown, self._held = self._held[: max(certain, 0)], self._held[max(certain, 0) :]
        return shown


class Turn(Reply):
    """A pending turn, without effect until `commit` is called."""

    def __init__(
        self,
        session: Session,
        request: ChatRequest,
        chat: ChatFormat,
        *,
        number: int,
        index: int,
        context: Context,
        sampling: SamplingParams,
        parser: Parser,
        grammars: Grammars,
    ) -> None:
        self.session = session
        self.request = request
        self.prompt = context.path
        self.root = context.root
        """The root of the turn's lineage."""
        self.number = number
        self.index = index
        self.message: dict[str, Any] = {}
        self.id = session.request_id(number)
        self.temperature = sampling.temperature
        constrained = sampling.grammar is not None
        self.sample = Sample([], [], [], [], [], sampling.temperature, constrained)
        self._context = context
        self._chat = chat
        self._sampling = sampling
        self._parser = parser
        self._grammars = grammars
        self._detokenizer = Detokenizer(chat)
        self._cutter = StopCutter(request.stop)
        self._held: list[int] = []
        self._support: list[Sequence[int]] = []
        self._finish: FinishReason | None = None
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    async def play(self, sampler: Sampler, on_events: OnEvents) -> None:
        """Sample; report the events of each delta, then those of the end.

        Raises:
            ApiError: 400, the engine cannot apply the reply form of the request.
            EngineError: the engine failed, stopped before the turn ended, or did not report the
            policy versions of its tokens.
        """
        deltas = sampler.generate(
            self.prompt,
            self._sampling,
            request_id=self.id,
            session_id=self.session.id,
            stream=self.request.stream,
        )
        try:
            async with aclosing(cast("AsyncGenerator[Delta, None]", deltas)) as stream:
                async for delta in stream:
                    self.session.progress_s = ENGINE_CLOCK.time()
                    size = TOKEN_SIZE * len(delta.token_ids)
                    await on_events(
                        self, self._keep(await in_thread_if_large(size, self._take, delta))
                    )
        except RequestRefused as error:
            # An engine that refuses a request with a grammar refuses the grammar, which is made of
            # the client's schemas, so the error is sent to the client. Some engines need one
            # truncation for another, to report the tokens from which they drew (`no_support`).
            form, cut = self.request.form, self._sampling.truncated_by
            if form is None and not cut:
                raise
            param = form.param if form else cut
            raise bad_request(f"{param} cannot be honoured: {error}", param=param) from error
        self._check_end()
        if self._must_know_choices:
            await in_thread_if_large(
                INLINE_SIZE, self._find_choices
            )  # to compile may take a second
        ending = await in_thread_if_large(TOKEN_SIZE * len(self.sample.ids), self._ending)
        await on_events(self, self._keep(ending))

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self._calls and self._finish == "stop" else str(self._finish)

    @property
    def stop_string(self) -> str | None:
        return self._cutter.found

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def num_sampled_tokens(self) -> int:
        return len(self.sample.ids)

    def logprobs(self) -> dict[str, Any] | None:
        # Without the end token's. A token that is only part of a character reads as U+FFFD.
        if not self.request.logprobs:
            return None
        content: list[dict[str, Any]] = []
        for token, logprob in zip(self.sample.ids, self.sample.logprobs, strict=True):
            if token not in self._chat.stop_token_ids:
                text = self._chat.text([token])
                entry = {"token": text, "logprob": logprob, "bytes": list(text.encode())}
                content.append({**entry, "top_logprobs": []})
        return {"content": content, "refusal": None}

    def reasoning_tokens(self) -> int:
        if not self._reasoning:
            return 0
        ids, end = self.sample.ids, 0
        text = self._chat.text(ids)
        for piece in self._reasoning:
            end = max(text.find(piece, end), end) + len(piece)
        lengths = range(len(ids))
        return bisect_left(lengths, end, key=lambda length: len(self._chat.text(ids[:length])))

    def commit(self, *, is_retry: bool = False) -> Sampled:
        """Record the finished turn and its `message`; return the node, on which the caller records
        the delivery.

        `is_retry`: the client repeats a request whose answer is no longer kept.

        Raises:
            ApiError: 410, the session was closed meanwhile.
        """
        if self.session.closed:
            raise session_closed()
        self.message = self.spelled("".join(self._content), "".join(self._reasoning), self._calls)
        node = self.session.commit(
            self._context,
            self.sample,
            self.request,
            self._complete_message(),
            number=self.number,
            sibling_of="n" if self.index else "retry" if is_retry else None,
        )
        counters = self.session.counters
        counters["prompt_tokens"] += len(self.prompt)
        counters["tool_calls"] += len(self._calls)
        counters["malformed_calls"] += sum(call.malformed for call in self._calls)
        counters["length_turns"] += self._finish == "length"
        return node

    def _complete_message(self) -> Mapping[str, Any]:
        """Return the message for the tree: with its beginning, if the client wrote one."""
        if not self.request.continues:
            return self.message
        begun = self.request.messages[-1]
        content = text_of(begun.get("content")) + (self.message["content"] or "")
        thoughts = thoughts_of(begun) + self.message.get("reasoning", "")
        return {**self.message, "content": content, **reasoning_keys(thoughts)}

    def _check_end(self) -> None:
        count, named = len(self.sample.ids), len(self.sample.versions)
        if self._finish is None or self._finish == "abort":
            how = "without a finish_reason" if self._finish is None else "by an abort"
            raise EngineError(f"the engine ended a turn {how} after {count} tokens")
        if named != count:
            raise EngineError(
                f"the engine sampled {count} tokens and named the policy versions of {named}"
            )

    @property
    def _must_know_choices(self) -> bool:
        """Return whether the turn trains, and its tokens were not drawn from the complete
        vocabulary."""
        restricted = self.sample.constrained or self._sampling.truncated_by
        return bool(restricted) and self.session.trains(self.sample)

    def _find_choices(self) -> None:
        """Record the sets from which the tokens were drawn: those that the engine reports, if
        sampling parameters exclude tokens that the grammar allows, or else those of the grammar."""
        if self._sampling.truncated_by:
            choices = choices_of(map(set_of, self._support))
        else:
            assert self._sampling.grammar is not None
            choices = self._grammars.choices(self._sampling.grammar, self.sample.ids)
        self.sample = replace(self.sample, choices=choices)

    def _take_support(self, delta: Delta) -> None:
        """Keep the sets from which the tokens of a delta were drawn.

        Raises:
            ApiError: 400, the engine does not report it, so the turn could not be trained.
            EngineError: a token is not in its own set.
        """
        if len(delta.support) != len(delta.token_ids):
            param = self._sampling.truncated_by
            raise refused(param, f"{_UNKNOWN}did not report them")
        for token, ids in zip(delta.token_ids, delta.support, strict=True):
            if token not in ids:
                raise EngineError(f"the engine drew token {token} from {len(ids)} others")
        self._support += delta.support

    def _take(self, delta: Delta) -> list[Event]:
        ids, sample = list(delta.token_ids), self.sample
        if not len(ids) == len(delta.logprobs) == len(delta.times_s):
            raise EngineError("the engine returned token lists of different lengths")
        if self._sampling.truncated_by and self.session.trains(sample):
            self._take_support(delta)
        sample.ids.extend(ids)
        sample.logprobs.extend(delta.logprobs)
        sample.versions.extend(delta.versions)
        sample.admitted.extend([delta.admitted_version] * len(ids))
        sample.times_s.extend(delta.times_s)
        sample.experts.extend(delta.experts)
        self._finish = delta.finish_reason
        shown = self._held + ids
        self._held = [shown.pop()] if shown and shown[-1] in self._chat.stop_token_ids else []
        text = self._cutter.feed(self._detokenizer.feed(shown), last=False)
        return self._parser.feed(text)

    def _ending(self) -> list[Event]:
        """Return the events of the end of the turn."""
        text = self._cutter.feed(self._detokenizer.finish(), last=True)
        ended = self._finish == "stop" and self._cutter.found is None
        return self._parser.feed(text) + self._parser.finish(ended=ended)

    def _keep(self, events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in events:
            if isinstance(event, str):
                self._content.append(event)
            elif isinstance(event, Reasoning):
                self._reasoning.append(event.text)
            elif self.request.one_call and self._calls:
                continue
            else:
                self._calls.append(event)
            kept.append(event)
        return kept


async def sample(turns: Sequence[Turn], sampler: Sampler, on_events: OnEvents) -> None:
    """Sample all turns at the same time, and report each delta as it arrives.

    Raises:
        EngineError: one of the turns failed; the others are aborted.
    """
    if len(turns) == 1:
        return await turns[0].play(sampler, on_events)
    async with together() as tasks:
        for turn in turns:
            tasks.create_task(turn.play(sampler, on_events), name=turn.id)


_UNKNOWN = "a session that trains needs the tokens that were left to draw from, and its engine "


def _check_support(session: Session, request: ChatRequest, sampler: Sampler) -> None:
    """Refuse a turn that could not be trained, before anything is sampled."""
    sampling = session.sampling.params(
        request, number=0, index=0, room=1, stop_token_ids=(), grammar=None
    )
    if not session.sampling.train or not sampling.truncated_by:
        return
    if why := sampler.no_support(sampling):
        raise refused(sampling.truncated_by, _UNKNOWN + why)


async def open_turns(
    session: Session,
    request: ChatRequest,
    chat: ChatFormat,
    *,
    max_model_len: int,
    parsers: ParserFactory,
    grammars: Grammars,
    size: int,
    sampler: Sampler,
) -> list[Turn]:
    """Check a request against the session's policy, and prepare the engine's input; return a turn
    for each sample. `size`: the number of bytes of the request that were read for the first time.

    Raises:
        ApiError: 400, the policy or the context length forbids it, or the engine cannot report the
            sets from which tokens are drawn.
    """
    _check_support(session, request, sampler)
    request, context = await prepare_context(
        session, chat, request, max_model_len=max_model_len, size=size
    )
    prompt_end = chat.text(context.path.tail(PROMPT_END_TOKENS))
    room = max_model_len - len(context.path)
    form = request.form
    grammar, base = None, context.base
    if form is not None and session.config.forced == "grammar":
        grammar = await in_thread_if_large(size, grammars.of, form, prompt_end)
    tools = request.tools if request.calls else None
    raw = request.prompt is not None
    return [
        Turn(
            session,
            request,
            chat,
            number=(number := session.next_request()),
            index=index,
            context=context,
            sampling=session.sampling.params(
                request,
                number=number,
                index=index,
                room=room,
                stop_token_ids=chat.stop_token_ids,
                grammar=grammar,
                experts_from=base.num_routed if base else 0,
            ),
            parser=TextParser() if raw else parsers(tools, prompt_end),
            grammars=grammars,
        )
        for index in range(request.n)
    ]
