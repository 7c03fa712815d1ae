"""The served teachers of a run: they compute the log-probs of an episode's tokens once it has
ended.

A teacher is frozen, so its response does not depend on the time of the request. The request is sent
before the episode is logged, while engines sample and the trainer trains: a batch that is trained
again, after a crash or by `arl replay`, then has the same numbers, and needs no server.

The request is OpenAI's completion with `echo` and no reply, whose log-probs are those of the
prompt, at temperature 1 among all tokens. For a token that was sampled otherwise they would be
wrong: it keeps NaN, and no teacher applies to it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError, InfraError, Row, Task, Trajectory
from agentgym_rl.core.token_records import ALL, TeacherLogprobs
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models import CANARIES
from agentgym_rl.rollout import Addition, AdditionKind
from agentgym_rl.runtime import AnswerTooLarge, HttpClient, Repeated, read_json, together

from .keys.teacher import TeacherConfig, TeacherKeys, TeacherModel

log = logging.getLogger(__name__)

_RETRY_AFTER_S = 0.5
"""The pause before the first retry; doubled for each further one, up to `_LONGEST_PAUSE_S`."""
_LONGEST_PAUSE_S = 30.0
_AT_ONCE = 16
"""The number of concurrent requests to one teacher; further rows wait."""
_SPECIAL = 64
"""The number of special tokens that are compared."""
_ANSWER_BYTES, _TOKEN_BYTES = 1 << 20, 2048
"""The longest answer: this, and as much for each token."""
_MISSING = -9999.0
"""The number that vLLM reports for a log-prob that is missing, infinite or not a number."""
_CONVERSATION: list[dict[str, Any]] = [{"role": "user", "content": "What is 12 * 34?"}]
_SAME = 0.5
"""The difference of log-probs, in nats, between a text and its token ids that rounding may make:
other tokens are several nats away."""


async def check_teachers(config: TeacherConfig, model_dir: Path, longest: int) -> None:
    """Check that served teachers have the tokenizer of the model in `model_dir`, and take rows of
    `longest` tokens.

    Raises:
        ConfigError, InfraError: see `ServedTeachers.check`.
    """
    async with ServedTeachers(config) as teachers:
        await teachers.check(model_dir, longest=longest)


class ServedTeachers(Addition):
    """The teachers of `algo.teacher.models` that are URLs. One event loop only; use it as a
    context."""

    def __init__(self, config: TeacherConfig) -> None:
        self._config = config
        self._http = HttpClient()
        self._turns = {one.model: asyncio.Semaphore(_AT_ONCE) for one in self.served}
        self._cards: dict[str, dict[str, Any]] = {}
        """The model that each server serves, as /v1/models describes it."""
        self._warnings = Repeated(log)

    @property
    def served(self) -> Sequence[TeacherModel]:
        """Return the teachers that are served."""
        return [one for one in self._config.models if one.is_served]

    async def __aenter__(self) -> ServedTeachers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def check(self, model_dir: Path, *, longest: int) -> None:
        """Check that each server tokenizes texts as the model in `model_dir` does, returns the
        log-probs of prompts, and accepts one of `longest` tokens.

        Raises:
            ConfigError: a server does not, or has another tokenizer.
            InfraError: a server does not answer.
        """
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        special = [one.content for one in tokenizer.get_added_tokens_decoder().values()]
        for url in dict.fromkeys(one.model for one in self.served):
            for text in (*CANARIES, CANARIES[0] + "".join(special[:_SPECIAL])):
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                theirs, ours = [await self._prompt_logprobs(url, prompt) for prompt in (text, ids)]
                if len(theirs) != len(ours) or np.abs(theirs - ours)[1:].max() > _SAME:
                    raise ConfigError(
                        f"the teacher at {url} has another tokenizer than the policy {model_dir}: "
                        f"{text!r} is {ids} here, and has the log-probs {theirs.tolist()} there, "
                        f"these tokens {ours.tolist()}. Serve a model of the policy's tokenizer"
                    )
            await self._check_room(url, longest)
            await self._compare_prompts(url, model_dir)

    async def _compare_prompts(self, url: str, model_dir: Path) -> None:
        """Warn if the server renders a conversation otherwise than the model in `model_dir`, as far
        as it reports that: vLLM does, by /tokenize."""
        chat = await asyncio.to_thread(ChatFormat.load, model_dir)
        ours = chat.prompt(_CONVERSATION, ())
        base = url.rstrip("/").removesuffix("/v1")
        body = {"model": self._cards[url]["id"], "messages": _CONVERSATION}
        try:
            status, text = await self._http.call(
                *(base, "POST", "/tokenize"),
                body=json.dumps(body | {"add_special_tokens": False}).encode(),
                headers={"Content-Type": "application/json"},
                timeout_s=self._config.timeout_s,
            )
            answer = read_json(text)
        except (OSError, ValueError):
            status, text, answer = 404, b"", None
        match answer:
            case {"tokens": list()}:
                if answer["tokens"] != ours:
                    log.warning(
                        "the teacher at %s has another chat template than the policy %s, which "
                        "renders a short conversation as the tokens %s, and it as %.300s: its "
                        "log-probs of the policy's texts may say little of what it would do with "
                        "prompts of its own. Serve it with the policy's template, or choose "
                        "another teacher",
                        *(url, model_dir, ours, str(answer["tokens"])),
                    )
            case _:
                log.log(
                    logging.WARNING if status in (400, 422) else logging.INFO,
                    "the teacher at %s does not tell its chat template (/tokenize of messages says "
                    "%s %s): it should have the policy's",
                    *(url, status, text[:200].decode(errors="replace")),
                )

    async def _check_room(self, url: str, longest: int) -> None:
        """Try a row of `longest` tokens, if the server's context may be too short for it: vLLM
        needs room for a sampled token, `arl engine` does not."""
        room = self._cards[url].get("max_model_len")
        if room is None or room > longest:
            return
        try:
            await self._prompt_logprobs(url, [0] * longest)
        except ConfigError as error:
            raise ConfigError(
                f"the teacher at {url} has a context of {room} tokens, and rows have up to "
                f"{longest} (engine.max_model_len): serve it with {longest + 1} (--max-model-len), "
                f"or set engine.max_model_len to {room - 1}. It said: {error}"
            ) from error

    async def added(self, episode: Trajectory, task: Task) -> Trajectory:
        """Return the episode with the log-probs of its tokens under the teachers of its task.

        Raises:
            InfraError: a teacher has not answered for `algo.teacher.patience_s`.
            ConfigError: a teacher refuses, or its response is not a list of log-probs.
        """
        weights = self._config.weights(episode.env_id, task.data)
        urls = [
            one.model if one.is_served and weight else ""
            for one, weight in zip(self._config.models, weights, strict=True)
        ]
        if not any(urls):
            return episode
        async with together() as asking:
            rows = [asking.create_task(self._with_logprobs(row, urls)) for row in episode.rows]
        return replace(episode, rows=[row.result() for row in rows])

    async def _with_logprobs(self, row: Row, urls: Sequence[str]) -> Row:
        """Return the row with the log-probs of the teachers at `urls`; "" for a teacher that does
        not apply."""
        found = np.full((len(row), len(urls)), np.nan, np.float32)
        sound = row.loss_mask & (row.temperatures == 1)
        if row.choices is not None:
            sound &= row.choices.index == ALL
        if sound.any():
            for url in {*urls} - {""}:  # one server may be several teachers
                said = await self._prompt_logprobs(url, row.tokens.tolist())
                for number in (n for n, name in enumerate(urls) if name == url):
                    found[sound, number] = said[sound]
        return replace(row, teacher_logprobs=TeacherLogprobs(found))

    async def _prompt_logprobs(self, url: str, prompt: str | list[int]) -> npt.NDArray[np.float32]:
        """Return the log-probs of the prompt's tokens, [T], NaN for the first; failed requests are
        repeated."""
        pause_s, clock = _RETRY_AFTER_S, asyncio.get_running_loop().time
        async with self._turns[url]:
            give_up_s = clock() + self._config.patience_s
            while True:
                try:
                    return await self._once(url, prompt)
                except OSError as error:
                    why = str(error) or type(error).__name__
                if clock() + pause_s > give_up_s:
                    raise InfraError(
                        f"the teacher at {url} has not answered for {self._config.patience_s:g} s "
                        f"(algo.teacher.patience_s): {why}. Start it again, and continue the run "
                        "with arl train --resume"
                    )
                self._warnings.warn("the teacher at %s does not answer: %s", url, why, why=why)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _once(self, url: str, prompt: str | list[int]) -> npt.NDArray[np.float32]:
        """Send one request; raise OSError where another one may succeed."""
        if url not in self._cards:
            self._cards[url] = _card(await self._call(url, "GET", "/v1/models"), url)
        card = self._cards[url]
        drawn = 1 if card.get("owned_by") == "sglang" else 0  # it refuses 0
        body = {
            "model": card["id"],
            "prompt": prompt,
            "max_tokens": drawn,
            "echo": True,
            "logprobs": 1,
            "temperature": 1.0,
            "add_special_tokens": False,
        }
        size = _ANSWER_BYTES + _TOKEN_BYTES * len(prompt)
        answer = await self._call(url, "POST", "/v1/completions", body, max_bytes=size)
        return _logprobs(answer, prompt, url, drawn=drawn)

    async def _call(
        self, url: str, method: str, path: str, body: Any = None, *, max_bytes: int = _ANSWER_BYTES
    ) -> Any:
        base = url.rstrip("/").removesuffix("/v1")
        try:
            status, text = await self._http.call(
                *(base, method, path),
                body=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                timeout_s=self._config.timeout_s,
                max_bytes=max_bytes,
            )
        except AnswerTooLarge as error:  # another request would get the same response
            raise ConfigError(f"the teacher at {url}: {method} {path}: {error}") from error
        said = text.decode(errors="replace")[:300]
        if status == 429 or status >= 500:
            raise ConnectionError(f"{method} {path} says {status} {said}")
        if status != 200:
            raise ConfigError(f"the teacher at {url} refuses {method} {path}: {status} {said}")
        try:
            return read_json(text)
        except ValueError:
            raise ConfigError(f"the teacher at {url}: {path} is no JSON: {said}") from None


class _Kind(AdditionKind):
    def takes(self, config: Config) -> bool:
        return any(one.is_served for one in config.algo.part(TeacherKeys).teacher.models)

    async def check(self, config: Config, model_dir: Path, *, say: Callable[[str], None]) -> None:
        say("asking the teachers for their tokenizers")
        longest = config.own_engine.max_model_len
        await check_teachers(config.algo.part(TeacherKeys).teacher, model_dir, longest)

    def opened(self, config: Config) -> ServedTeachers:
        return ServedTeachers(config.algo.part(TeacherKeys).teacher)


KIND = _Kind()


def _card(answer: Any, url: str) -> dict[str, Any]:
    """Return the description of the served model in the answer of /v1/models.

    Raises:
        ConfigError: there is none.
    """
    match answer:
        case {"data": [{"id": str(), "max_model_len": int() | None} as card, *_]}:
            return card
        case {"data": [{"id": str()} as card, *_]} if "max_model_len" not in card:
            return card
        case _:
            raise ConfigError(
                f"the teacher at {url} names no model at /v1/models, expected data with an id: "
                f"{str(answer)[:300]}"
            )


def _logprobs(
    answer: Any, prompt: str | list[int], url: str, *, drawn: int
) -> npt.NDArray[np.float32]:
    """Return the log-probs of a prompt in the answer to an `echo`, without the `drawn` tokens that
    were requested after it.

    Raises:
        ConfigError: they are not there, not as many as tokens, or no log-probs.
    """
    try:
        found = answer["choices"][0]["logprobs"]["token_logprobs"]
        numbers = [math.nan, *(float(one) for one in found[1 : len(found) - drawn])]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"the teacher at {url} tells no log-probs of a prompt (`echo` of /v1/completions): "
            f"{str(answer)[:300]}"
        ) from None
    if isinstance(prompt, list):
        # A server that cannot sample 0 tokens may add the one that it sampled.
        if not len(prompt) <= len(numbers) <= len(prompt) + 1:
            raise ConfigError(
                f"the teacher at {url} tells {len(numbers)} log-probs of {len(prompt)} tokens"
            )
        numbers = numbers[: len(prompt)]
    for position, number in enumerate(numbers[1:], 1):
        if not _MISSING < number <= 1e-3:
            raise ConfigError(
                f"the teacher at {url} tells {number}, which is no log-prob, of token {position}: "
                f"expected a number from 0 down to above {_MISSING:g}, which vLLM reports where it "
                "has none; do its weights give finite logits?"
            )
    return np.minimum(np.array(numbers, np.float32), 0)
