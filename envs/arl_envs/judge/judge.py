"""The judges: a model behind an OpenAI-compatible URL or LiteLLM, and a panel of such."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

from agentgym_rl import ConfigError, EnvError, InfraError
from agentgym_rl.runtime import together

from .asking import Asking, Judgment, added
from .cache import VerdictCache
from .endpoint import Endpoint, JudgeRefusal
from .question import Question
from .watch import Watch

log = logging.getLogger(__name__)

ResponseFormat = Literal["json_schema", "json_object", "none"]
Combine = Literal["mean", "median", "majority"]


class NoVerdict(InfraError):
    """The error for a judge that answers, and gives no verdict."""

    metric = "judge_no_verdict"


class Judge(Asking):
    """A model that judges; usable in any event loop, and by any number of episodes at once."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        temperature: float | None = 0.0,
        max_tokens: int = 512,
        response_format: ResponseFormat = "json_schema",
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 3,
        max_asks: int = 3,
        max_concurrent: int = 16,
        max_text_bytes: int = 24_000,
        cache: str | Path | None = None,
        price_prompt: float | None = None,
        price_completion: float | None = None,
        warn_usd: float = 10.0,
    ) -> None:
        """Describe a judge; no request is sent yet.

        Args:
            model: The name at the server, or litellm:PROVIDER/NAME.
            base_url: The URL of an OpenAI-compatible server, up to /v1.
            api_key_env: The environment variable with the key; None: no key is sent.
            temperature: The sampling temperature; None: the server's own.
            max_tokens: The longest reply, thoughts included; sent as max_completion_tokens to a
                model that requires that name.
            response_format: The way in which the form of the verdict is requested; `none` for
                servers that support neither: the reply must have the form nevertheless.
            extra_body: Further fields of every request.
            timeout_s: The longest attempt.
            max_retries: The attempts after the first for a server that fails.
            max_asks: The most requests for one verdict; a reply that is no verdict is followed by
                another request.
            max_concurrent: The number of questions in progress at once.
            max_text_bytes: The longest quoted text, in bytes of UTF-8.
            cache: The file of verdicts; None: every question is sent.
            price_prompt, price_completion: The USD per million tokens, both or neither.
            warn_usd: The cost in this process at which a warning is logged.

        Raises:
            ConfigError: a value that cannot work.
        """
        if (price_prompt is None) != (price_completion is None):
            raise ConfigError("give price_prompt and price_completion together, or neither")
        if response_format not in get_args(ResponseFormat):
            allowed = ", ".join(get_args(ResponseFormat))
            raise ConfigError(f"response_format {response_format!r}; allowed: {allowed}")
        counts = {"max_tokens": max_tokens, "max_asks": max_asks, "max_concurrent": max_concurrent}
        for name, value in {**counts, "max_text_bytes": max_text_bytes}.items():
            if value < 1:
                raise ConfigError(f"{name} {value}: expected a number from 1")
        self.max_text_bytes = max_text_bytes
        self._endpoint = Endpoint(
            model,
            base_url=base_url,
            api_key_env=api_key_env,
            timeout_s=timeout_s,
            max_retries=max_retries,
        )
        sampling = {} if temperature is None else {"temperature": temperature}
        self._request = {"max_tokens": max_tokens, **sampling, **(extra_body or {})}
        if _NEWER in self._request:
            del self._request["max_tokens"]
        self._settings: Mapping[str, Any] = self._request
        """The parameters of the request that the model supports."""
        self._response_format: ResponseFormat = response_format
        self._max_asks = max_asks
        self._max_concurrent = max_concurrent
        self._cache = None if cache is None else VerdictCache(cache)
        self._prices = (price_prompt, price_completion)
        self._watch = Watch(model, warn_usd=warn_usd)
        self._open: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
        self._locks: dict[str, asyncio.Lock] = {}
        """The locks of the questions in progress: a caller with the same question waits for its
        verdict in the cache."""

    @property
    def longest_s(self) -> float:
        # A text that is blamed took two questions, and a neutral one between.
        return 3 * self._max_asks * self._endpoint.longest_s

    async def answer(self, question: Question) -> Judgment:
        if self._cache is None:
            return await self._ask(question)
        identity = [self._endpoint.model, self._endpoint.base_url, self._request, question.key()]
        key = json.dumps(identity, sort_keys=True)
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                if (score := await self._cache.get(key)) is not None:
                    return Judgment(
                        self._checked(question, score), {"judge_calls": 0.0, "judge_cached": 1.0}
                    )
                verdict = await self._ask(question)
                if verdict.blamed:  # another filter, or a longer context, may judge it
                    return verdict
                kept = await self._cache.put(key, int(verdict.score))
                return Judgment(self._checked(question, kept), verdict.costs)
        finally:
            if not lock.locked():
                self._locks.pop(key, None)

    def _checked(self, question: Question, score: Any) -> int:
        """Return a score that the cache has kept."""
        if not question.allows(score):
            raise EnvError(
                f"judge's cache {self._cache}: {score!r} is on no scale from {question.low} to "
                f"{question.high}; remove the file, or name another"
            )
        return score

    async def _ask(self, question: Question) -> Judgment:
        """Return the verdict, or the lowest score for the texts that prevent one.

        A text is blamed only if the judge fails on it, works on a neutral text in its place, and
        then fails on it again: a judge that refuses everything is a wrong setup.
        """
        costs: list[Mapping[str, float]] = []
        try:
            return Judgment(await self._score(question, costs), added(costs))
        except (JudgeRefusal, NoVerdict) as error:
            if not question.judged:
                raise
            failed = error
        if not await self._works(question.without(*question.judged), costs):
            raise failed
        try:
            return Judgment(await self._score(question, costs), added(costs))
        except (JudgeRefusal, NoVerdict) as error:
            self._watch.blamed(error.metric, str(error))
            blamed = dict.fromkeys(await self._culprits(question, costs), error.metric)
        if len(question.judged) == 1:
            return Judgment(question.low, added(costs), blamed)
        sides = {question.judged[0]: question.low, question.judged[1]: question.high}
        return Judgment(fmean(sides[name] for name in blamed), added(costs), blamed)

    async def _works(self, question: Question, costs: list[Mapping[str, float]]) -> bool:
        """Return whether the judge gives a verdict on a question."""
        try:
            await self._score(question, costs)
        except (JudgeRefusal, NoVerdict):
            return False
        return True

    async def _culprits(
        self, question: Question, costs: list[Mapping[str, float]]
    ) -> Sequence[str]:
        """Return the judged texts without which the judge works: the longer one if either would do,
        and all if only all of them do."""
        names = question.judged
        if len(names) == 1:
            return names
        found = [name for name in names if await self._works(question.without(name), costs)]
        sizes = {name: len(question.texts[name].encode()) for name in found or names}
        return [name for name, size in sizes.items() if not found or size == max(sizes.values())]

    async def _score(self, question: Question, costs: list[Mapping[str, float]]) -> int:
        """Send requests, each with new marks, until a reply is a verdict, at most `max_asks`;
        return its score. `costs` gets the cost of each request.

        Raises:
            NoVerdict: no reply is one.
            JudgeRefusal: the judge refuses, by a status or in its reply.
            InfraError: the last answer is no reply at all.
        """
        reply: Mapping[str, Any] = {}
        for _ in range(self._max_asks):
            reply = await self._reply(question)
            costs.append(self._costs(reply))
            if (score := question.verdict(_content(reply))) is not None:
                self._watch.verdict(question.name, score)
                return score
            if refusal := _refusal(reply):
                raise self._endpoint.refused(f"it answered {refusal}", refusal)
        if not _is_reply(reply):
            raise self._endpoint.malformed(reply)
        raise NoVerdict(
            f"judge {self._endpoint.model}: no verdict in {self._max_asks} replies (max_asks), "
            f'expected {{"score": {question.low} to {question.high}}}; the last one '
            f"{self._described(reply)}"
        )

    async def _reply(self, question: Question) -> dict[str, Any]:
        """Return the reply to one request, without the parameters that the model does not
        support."""
        settings = self._settings
        while True:
            request = {**settings, "messages": question.messages(), **self._form(question)}
            try:
                async with self._turn():
                    reply = await self._endpoint.ask("/chat/completions", request)
            except JudgeRefusal as error:
                if (other := _other_settings(settings, error.message)) is None:
                    raise
                settings = other
                continue
            if settings is not self._settings:
                log.warning(
                    "judge %s refuses %s and takes %s: these are sent from now on",
                    *(self._endpoint.model, self._settings, settings),
                )
                self._settings = settings
            return reply

    def _described(self, reply: Mapping[str, Any]) -> str:
        match reply:
            case {"choices": [{"finish_reason": "length"}, *_]}:
                return (
                    f"was cut at max_tokens={self._request.get('max_tokens')}, thoughts included: "
                    "raise max_tokens, or let the judge think less"
                )
            case {"choices": [{"finish_reason": end, "message": {"content": content}}, *_]}:
                return f"ended by {end!r:.50}: {content!r:.200}"
            case _:
                return f"has no message: {reply!r:.200}"

    def _form(self, question: Question) -> dict[str, Any]:
        match self._response_format:
            case "json_schema":
                form = {"name": "verdict", "strict": True, "schema": question.schema()}
                return {"response_format": {"type": "json_schema", "json_schema": form}}
            case "json_object":
                return {"response_format": {"type": "json_object"}}
            case _:
                return {}

    def _turn(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        return self._open.setdefault(loop, asyncio.Semaphore(self._max_concurrent))

    def _costs(self, reply: Mapping[str, Any]) -> dict[str, float]:
        prompt, completion = (
            self._endpoint.tokens(reply, f"{name}_tokens") for name in ("prompt", "completion")
        )
        usd: float | None = reply.get("usd") if self._endpoint.base_url is None else None
        price_prompt, price_completion = self._prices
        if price_prompt is not None and price_completion is not None:
            usd = (price_prompt * prompt + price_completion * completion) / 1e6
        self._watch.call(prompt + completion, usd or 0.0)
        found = {"judge_calls": 1.0, "judge_tokens": float(prompt + completion)}
        return found if usd is None else {**found, "judge_usd": float(usd)}


def _content(reply: Mapping[str, Any]) -> Any:
    """Return the text of a reply that ended by itself; None if there is none."""
    match reply:
        case {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}:
            return content
    return None


def _is_reply(reply: Mapping[str, Any]) -> bool:
    """Return whether an answer has the form of a reply, with or without a message."""
    match reply:
        case {"choices": [] | None} | {"promptFeedback": _}:
            return True
        case {"choices": [{**first}, *_]}:
            return isinstance(first.get("message"), Mapping | None)
        case _:
            return False


def _refusal(reply: Mapping[str, Any]) -> str:
    """Return how a reply without verdict refuses to judge; "" if it does not."""
    match reply:
        case {"choices": [{"message": {"refusal": str() as words}}, *_]} if words:
            return f"with the refusal {words!r:.200}"
        case {"choices": [{"finish_reason": str() as end}, *_]} if end.lower() in _REFUSALS:
            return f"with finish_reason {end!r}"
        case {"choices": [] | None} | {"promptFeedback": _}:
            return f"without a choice: {reply!r:.200}"
        case _:
            return ""


_REFUSALS = (
    *("content_filter", "refusal", "sensitive", "safety", "recitation", "blocklist"),
    *("prohibited_content", "spii", "guardrail_intervened", "content_filtered"),
)
"""The ends of a reply that a filter of OpenAI, Azure, Anthropic, Zhipu, Google or Amazon made."""
_NEWER = "max_completion_tokens"


def _other_settings(settings: Mapping[str, Any], message: str) -> dict[str, Any] | None:
    """Return the settings without those that the server's model does not support, by the message
    `message` of its refusal; None if the message names none."""
    if "max_tokens" in settings and _NEWER in message:
        rest = {name: value for name, value in settings.items() if name != "max_tokens"}
        return {_NEWER: settings["max_tokens"], **rest}
    if "temperature" in settings and re.search(r"\btemperature\b", message):
        return {name: value for name, value in settings.items() if name != "temperature"}
    return None


class Panel(Asking):
    """Several judges that get the same question, each in its own request. `combine`: the mean or
    the median of their scores, or the score that most of them give (of equally many, their mean).

    Raises:
        ConfigError: fewer than two judges, or an unknown `combine`.
    """

    def __init__(self, judges: Sequence[Asking], *, combine: Combine = "median") -> None:
        if len(judges) < 2:
            raise ConfigError(f"a panel of {len(judges)} judges: expected at least 2")
        if combine not in get_args(Combine):
            raise ConfigError(f"combine {combine!r}; allowed: {', '.join(get_args(Combine))}")
        self.max_text_bytes = min(judge.max_text_bytes for judge in judges)
        self._judges = judges
        self._combine: Combine = combine

    @property
    def longest_s(self) -> float:
        return max(judge.longest_s for judge in self._judges)

    async def answer(self, question: Question) -> Judgment:
        async with together() as tasks:
            pending = [tasks.create_task(judge.answer(question)) for judge in self._judges]
        verdicts = [task.result() for task in pending]
        scores = [verdict.score for verdict in verdicts]
        blamed = {name: metric for v in verdicts for name, metric in v.blamed.items()}
        return Judgment(combined(scores, self._combine), added(v.costs for v in verdicts), blamed)


def combined(scores: Sequence[float], how: Combine) -> float:
    """Return one score for those of several judges."""
    match how:
        case "mean":
            return fmean(scores)
        case "median":
            return median(scores)
        case "majority":
            counts = Counter(scores)
            most = max(counts.values())
            return fmean(score for score, count in counts.items() if count == most)
