"""The sessions: the gateway's view of an episode, opened with a key that opens nothing else.

A session imposes its sampling policy on the requests of its agent.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import UNKNOWN_VERSION, Credit, Row
from agentgym_rl.core.credit import NO_CREDIT
from agentgym_rl.gateway.errors import session_closed, unknown_key
from agentgym_rl.gateway.messages import MessageKey, message_key
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.request.reply_form import ReplyForm
from agentgym_rl.gateway.request.request_cache import Bodies
from agentgym_rl.gateway.request.unreadable import left_out_of
from agentgym_rl.gateway.retries_and_hangups import Exchanges
from agentgym_rl.gateway.template.sandbox import dates_of
from agentgym_rl.runtime import LruDict
from agentgym_rl.runtime.pausable_clock import MAX_WAIT_FACTOR

from .nodes import Context, Sample, Sampled, SiblingOf
from .rows import Credits, export_rows, num_lost
from .sampling import SessionSampling
from .tree import Location, Tree
from .turn_check import Pending, TurnCheck, turn_checks
from .unmet_form import unmet

COUNTERS: Mapping[str, str] = {
    "forks": "turns that do not continue the path before them (each makes a row of its own)",
    "forks_new_root": "of these: other system messages, tools or template arguments (a helper)",
    "forks_history_edit": "an earlier message was rewritten, or cut",
    "forks_summary": "a text that the model had sampled took the place of earlier messages",
    "forks_args_edit": "a sampled tool call was rewritten",
    "forks_think_drop": "after a user message, the template drops thoughts (`thinking_history`)",
    "forks_template": "the chat template has no local turns, or no place for a message",
    "forks_seam": "the turn ended with a token that the new messages do not begin with",
    "forks_sibling": "the same messages were sent again",
    "forks_n_sibling": "another of the n choices of one request",
    "forks_retry_sibling": "a request was sent again, and sampled again",
    "ambiguous_echoes": "turns that continue one of several equal turns, by a guess",
    "trusted_edits": "turns that continue one whose call the client rewrote (`edited_calls`)",
    "side_turns": "answered turns outside the main lineage",
    "tool_calls": "calls sent to the client",
    "malformed_calls": "of these: not a JSON object with a name and an object of arguments",
    "length_turns": "turns cut by max_tokens or the context length",
    "greedy_turns": "turns sampled at temperature 0, which do not train",
    "constrained_turns": "turns held to a schema or to a forced call",
    "unmatched_turns": "of these: their engine read the grammar otherwise; they do not train",
    "forced_missed": "failures of the agent after a reply that did not have its forced form",
    "undelivered_turns": "turns aborted because the client left or the session was closed",
    "lost_replies": "turns whose client left before it had the reply, and that do not train",
    "joined_retries": "requests sent again by a client that got the answer of the first",
    "overflows": "requests refused because the prompt left no room to sample",
    "prompt_tokens": "of the prompts of answered turns",
    "sampled_tokens": "tokens of answered turns",
    "unknown_version_tokens": "tokens of these with an unknown policy version, which do not train",
    "single_choice_tokens": "of these: no other token was allowed, so that none could be learned",
    "trained_tokens": "of these: with loss_mask True",
    "omitted_tools": "offered tools that were left out of the prompt, each name once",
    "placeholders": "images, documents and the like replaced by a text, each once",
    "ignored_sampling": "requests whose sampling parameters were ignored (`gateway.sampling`)",
    "truncated_turns": "turns whose oldest messages were left out (`truncation` auto)",
    "uncounted_turns": "turns whose tokens the foreign endpoint did not count",
    "filtered_turns": "turns whose reply the foreign endpoint withheld (content filter)",
    "empty_turns": "turns of a foreign endpoint with neither text nor calls",
    "text_calls": "turns of a foreign endpoint with a call in the text, which it did not parse",
}
"""The counters of a session with their descriptions; a session always has all of them, and those of
checks of its turns."""


_DEFAULTS = GatewayConfig()


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The record of a closed session: `rows` as `rows.export_rows` specifies, and other results."""

    rows: list[Row]
    num_turns: int
    messages: Sequence[Mapping[str, Any]]
    """The conversation of the last turn, including its reply, for display."""
    counters: Mapping[str, int]
    infra_error: str
    """The engine's failure, or "". Such an episode must not count as a reward of 0."""
    overflow: str = ""
    """The error for the first request whose prompt left no room to sample, or ""."""
    withheld: str = ""
    """The error with which a content filter of a foreign endpoint withheld the first reply, or
    ""."""
    credit: Credit = NO_CREDIT
    """The rewards paid to the session, besides those of the environment."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools offered in the last turn."""
    form: ReplyForm | None = None
    """The form that the last turn's request demanded of its reply."""
    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    """The usage that an endpoint served elsewhere reported for all turns: `cached_tokens` of the
    prompts, `cost_usd`. A value missing for one turn is omitted."""

    @property
    def too_long(self) -> str:
        """Return the reason why no reply could be sampled, if it is the length of the first prompt;
        else ""."""
        if not self.overflow or self.num_turns:
            return ""
        return f"the first prompt leaves no room for a reply: {self.overflow}"

    def missed_form(self) -> str:
        """Return how the last reply violates the form that its request demanded; "" if it does not.
        If the agent fails after such a reply, the model is the cause."""
        if self.form is None:
            return ""
        why = unmet(self.form, self.messages[-1])
        return f"the model's reply {why} (forced by {self.form.param})" if why else ""


_S = TypeVar("_S")


class Session:
    """The conversations of one episode. `key` is the API key that opens the session."""

    def __init__(
        self,
        session_id: str,
        *,
        sampling: SessionSampling,
        turn_timeout_s: float,
        config: GatewayConfig = _DEFAULTS,
    ) -> None:
        self.id = session_id
        self.key = f"sk-arl-{secrets.token_hex(16)}"
        self.sampling = sampling
        self.turn_timeout_s = turn_timeout_s
        self.config = config
        self.tree = Tree(edited_calls=config.edited_calls)
        self.main_tools: Sequence[str] = ()
        """The names of the environment's tools; the lineage with these tools is the main one."""
        self._credits = Credits()
        self.checked: list[Pending] = []
        """The running checks of turns, whose results are counted once they are done."""
        self._strftime = dates_of(config.moment or datetime.now())
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        for check in turn_checks():
            self.counters |= dict.fromkeys(check.counters, 0)
        self.infra_error = ""
        self._overflow = ""
        self.closed = False
        self.num_requests = 0
        """The number of accepted requests, answered or not."""
        self.bodies = Bodies(unreadable=config.unreadable, sampling=config.sampling)
        self.exchanges = Exchanges()
        self._states: dict[type, Any] = {}
        self.kept_from: tuple[int, MessageKey] | None = None
        """The index and the key of the first message that stayed when the oldest were left out
        (`truncation` auto)."""
        self._omitted = set[str]()
        self._left_out = set[tuple[str, str]]()
        self._messages: list[Mapping[str, Any]] = []
        self._form: ReplyForm | None = None
        self._tools: Sequence[Mapping[str, Any]] = ()
        self.progress_s = -math.inf
        """The time of the last token, or of the end of a turn, on the clock `ENGINE_CLOCK`."""
        self.in_flight: set[asyncio.Timeout] = set()
        """The deadlines of the turns in progress, through which `abort` ends them."""
        self._tag = secrets.token_hex(4)  # session ids may repeat, request ids must not

    @property
    def num_turns(self) -> int:
        """Return the number of answered turns."""
        return len(self.tree.turns)

    @property
    def longest_turn_s(self) -> float:
        """Return the longest time, in seconds, that a turn may get no token while its engine serves
        others."""
        return MAX_WAIT_FACTOR * self.turn_timeout_s

    def next_request(self) -> int:
        """Return the number of a new request."""
        number, self.num_requests = self.num_requests, self.num_requests + 1
        return number

    def request_id(self, number: int) -> str:
        """Return the unique name of a request for the engine."""
        return f"{self.id}-{self._tag}-{number}"

    def number_of(self, reply_id: str) -> int | None:
        """Return the request number of a reply's id; None if it is not of this session."""
        _, found, number = reply_id.rpartition(self.request_id(0).removesuffix("0"))
        return int(number) if found and number.isdecimal() and len(number) < 16 else None

    def locate(self, request: ChatRequest) -> Location:
        """Return the location of a request's conversation in the tree; a thread may call this."""
        return self.tree.locate(
            request.messages, tools=request.tools, template_kwargs=request.template_kwargs
        )

    def taken_apart(self, request: ChatRequest) -> ChatRequest:
        """Return a request in which turns that the client has joined are split again."""
        messages, kwargs = request.messages, request.template_kwargs
        apart = self.tree.taken_apart(messages, tools=request.tools, template_kwargs=kwargs)
        return request if apart is messages else replace(request, messages=apart)

    def take(self, place: Location) -> None:
        """Count a request answered from `place`, and keep the location for a faster search."""
        self.tree.remember(place)
        self.counters["ambiguous_echoes"] += place.guessed
        self.counters["trusted_edits"] += place.trusted

    def note_omissions(self, request: ChatRequest) -> None:
        """Count the parts of a request that the model does not see: tools, and parts that are not
        text."""
        named = {tool.name for tool in request.omitted_tools} - self._omitted
        parts = {(str(one["sha256"]), str(one["text"])) for one in left_out_of(request.messages)}
        parts -= self._left_out
        self._omitted |= named
        self._left_out |= parts
        self.counters["omitted_tools"] += len(named)
        self.counters["placeholders"] += len(parts)
        self.counters["truncated_turns"] += request.truncated

    def note_ignored(self, names: Set[str]) -> Set[str]:
        """Count a request whose sampling parameters `names` were left to the session; return those
        that it does not decide in any case."""
        policy = self.sampling
        own = {"temperature": policy.temperature, "seed": policy.seed}
        found = {name for name in names if own.get(name) is None}
        self.counters["ignored_sampling"] += bool(found)
        return found

    def state(self, kind: type[_S]) -> _S:
        """Return the state that a dialect keeps between requests of this session: the object of the
        class `kind`, made without arguments at the first use. A thread may call this."""
        if kind not in self._states:
            self._states.setdefault(kind, kind())  # another thread may be first
        return self._states[kind]

    def template_kwargs(self, request: ChatRequest) -> Mapping[str, Any]:
        """Return the template's arguments; without `gateway.date`, the date is that on which the
        session was opened."""
        return {**request.template_kwargs, "strftime_now": self._strftime}

    def drawn_checks(self) -> list[TurnCheck]:
        """Return the checks that select the next request, by its number."""
        name = f"{self.id}/{self.num_requests}"
        return [check for check in turn_checks() if check.draws(self.config, name)]

    def abort(self) -> None:
        """Refuse further turns, and end those in flight, which are only counted."""
        self.closed = True
        now = asyncio.get_running_loop().time() if self.in_flight else 0.0
        for deadline in self.in_flight:
            if not deadline.expired():
                deadline.reschedule(now)

    def fail(self, error: str) -> None:
        """Mark the episode as failed by the infrastructure; the first error stays."""
        self.infra_error = self.infra_error or error

    def overflow(self, error: str) -> None:
        """Count a request whose prompt left no room to sample; the first error stays."""
        self.counters["overflows"] += 1
        self._overflow = self._overflow or error

    def commit(
        self,
        context: Context,
        sample: Sample,
        request: ChatRequest,
        reply: Mapping[str, Any],
        *,
        number: int,
        sibling_of: SiblingOf | None,
    ) -> Sampled:
        """Record an answered turn before its reply is sent; return its node, on which the caller
        notes the delivery.

        `sibling_of`: see `Tree.commit`.
        """
        node, cause = self.tree.commit(
            context, sample, reply, request=number, sibling_of=sibling_of
        )
        messages = request.messages[:-1] if request.continues else request.messages
        self._messages, self._tools = [*messages, reply], request.tools or ()
        self._form = request.form
        self.counters["sampled_tokens"] += len(sample.ids)
        self.counters["unknown_version_tokens"] += sample.versions.count(UNKNOWN_VERSION)
        self.counters["greedy_turns"] += sample.temperature == 0
        self.counters["constrained_turns"] += sample.constrained
        if sample.constrained and self.trains(sample):
            self.counters["unmatched_turns"] += sample.choices is None
        if sample.choices is not None:
            self.counters["single_choice_tokens"] += sample.choices.num_forced
        if cause is not None:
            self.counters["forks"] += 1
            self.counters[f"forks_{cause}"] += 1
        return node

    def trains(self, sample: Sample) -> bool:
        """Return whether turns that were sampled like this one train."""
        return self.sampling.train and sample.temperature > 0

    def reward(
        self, value: float, *, turn: int | str | None = None, lineage: int | None = None
    ) -> None:
        """Reward the episode; or one turn (its number or the id of its reply) and, with
        `algo.turn_discount`, the turns before it; or all turns of a lineage (0 is the main one).

        Rewards add up.

        Raises:
            ValueError: the value is not finite, the turn or lineage is unknown, or both are given.
        """
        roots = self.tree.lineages(self.main_tools)
        if isinstance(turn, str):
            turn = self._turn_of(turn)
        self._credits.pay(value, turn=turn, lineage=lineage, turns=self.tree.turns, roots=roots)

    def reward_action(self, value: float, action: Mapping[str, Any]) -> bool:
        """Reward the turn that became the agent's message `action`; return whether there is one.

        It is the newest turn with this reply: an agent may have made other requests since its last
        step (a plan, several candidates, a summary). An agent that changed the reply gets the
        reward for its newest turn in the main lineage.

        Raises:
            ValueError: the value is not finite.
        """
        key, turns = message_key({**action, "role": "assistant"}), self.tree.turns
        same = next((node for node in reversed(turns) if node.key == key), None)
        roots = self.tree.lineages(self.main_tools) if turns else []
        paid = same or (roots[0].turns[-1] if roots else None)
        if paid is None:
            return False
        self.reward(value, turn=paid.turn)
        return True

    def record(self) -> SessionRecord:
        """Return everything recorded so far."""
        roots = self.tree.lineages(self.main_tools)
        side = self.config.train_side_lineages
        rows = export_rows(self.tree, roots, train=self.sampling.train, train_side_lineages=side)
        counted = {
            "trained_tokens": sum(row.num_trained for row in rows),
            "lost_replies": num_lost(self.tree),
            "side_turns": sum(len(root.turns) for root in roots[1:]),
        }
        return SessionRecord(
            rows=rows,
            num_turns=self.num_turns,
            messages=self._messages,
            counters=self.counters | counted | self._found_by_checks(),
            infra_error=self.infra_error,
            overflow=self._overflow,
            tools=self._tools,
            form=self._form,
            credit=self._credits.record(self.tree.turns, roots),
        )

    def _turn_of(self, response_id: str) -> int:
        """Return the turn whose reply had this id.

        Raises:
            ValueError: no reply had it.
        """
        number = self.number_of(response_id)
        node = None if number is None else self.tree.of_request(number)
        if node is None:
            raise ValueError(f"no answered turn of this session has the id {response_id!r}")
        return node.turn

    def _found_by_checks(self) -> dict[str, int]:
        """Count what finished checks found. Sampling a turn takes longer than these."""
        done = [pending.result() for pending in self.checked if pending.done()]
        return dict(Counter(name for names in done for name in names))


_REMEMBERED = 100_000
"""The number of closed sessions that still answer 410; older ones answer 401."""


class SessionTable:
    """The open sessions by key. Keys are compared as digests, safe from timing attacks."""

    def __init__(self) -> None:
        self._open: dict[bytes, Session] = {}
        self._closed: LruDict[bytes, None] = LruDict(_REMEMBERED)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, session: Session) -> None:
        """Accept the session's key."""
        self._open[_digest(session.key)] = session

    def remove(self, session: Session) -> None:
        """Reject the session's key from now on; idempotent."""
        digest = _digest(session.key)
        self._open.pop(digest, None)
        self._closed[digest] = None

    def authenticate(self, key: str) -> Session:
        """Return the open session to which `key` belongs.

        Raises:
            ApiError: 401 for an unknown key, 410 for the key of a closed session.
        """
        digest = _digest(key)
        session = self._open.get(digest)
        if session is not None and hmac.compare_digest(session.key.encode(), _bytes(key)):
            if session.closed:
                raise session_closed()
            return session
        raise session_closed() if digest in self._closed else unknown_key()


def _digest(key: str) -> bytes:
    return hashlib.blake2b(_bytes(key), digest_size=16).digest()


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
