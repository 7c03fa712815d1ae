"""A reward model, served by `arl engine --reward-model FOLDER`: a sequence classifier behind the
route /classify, with vLLM's fields, so that a judge may use either server.

    request ─► token ids ─► queue ─► batches of alike lengths ─► logits ─► reply

A row's score does not depend on the others of its batch: rows are padded on the right with the
token that the model itself takes for padding, which its attention mask and its choice of the last
token leave out.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import agentgym_rl
from agentgym_rl.core import ConfigError
from agentgym_rl.engines import protocol
from agentgym_rl.runtime import Api, BodyTooLarge, json_response, read_body, serving, stop_signal

from .model import context_limit, pick_device
from .section import EmbeddedEngineConfig

log = logging.getLogger(__name__)

Rows = Sequence[Sequence[int]]

_MAX_BODY_BYTES = 16_000_000
_BATCH_TOKENS = 16_384
"""The most tokens of a batch, padding included."""
_LIMIT_S = 600.0
"""The longest time of a request, the wait for earlier ones included."""
_LOAD_ERRORS = (OSError, ValueError, RuntimeError, ImportError, KeyError, TypeError, AttributeError)


class ClassifyBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /classify`: either `input`, texts or token ids, or `messages`."""

    model: str | None = None
    input: str | list[str | int | list[int]] | None = None
    messages: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    add_generation_prompt: bool = False
    add_special_tokens: bool | None = None
    """The switch for tokens such as BOS; None: on for texts, off for messages, as in vLLM."""
    use_activation: bool | None = None
    """The switch for a sigmoid or softmax over the logits (the default)."""
    user: str | None = None


class InvalidRequest(ValueError):
    """A request that the model cannot answer."""


class Classifier:
    """A sequence classifier and its tokenizer. One thread at a time may compute."""

    def __init__(self, folder: Path, config: EmbeddedEngineConfig) -> None:
        """Load the model in `folder`.

        Raises:
            ConfigError: there is no model, or tensors of it are missing, which would be random.
        """
        device = pick_device(config.device)
        self._model = _loaded(folder, getattr(torch, config.dtype)).to(device).eval()
        self._device = device
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        about = self._model.config
        self.labels: Mapping[int, str] = about.id2label
        self.max_tokens = context_limit(about.get_text_config(), sys.maxsize)
        self._text = about.get_text_config()
        self._own_padding: int | None = self._text.pad_token_id
        self._problem: str | None = about.problem_type

    def tokens(self, asked: ClassifyBody) -> Rows:
        """Return the token ids of a request.

        Raises:
            InvalidRequest: nothing to classify, too many tokens, unknown ids, or no chat template.
        """
        if (asked.input is None) == (asked.messages is None):
            raise InvalidRequest("expected either input or messages")
        rows = self._of_messages(asked) if asked.messages is not None else self._of_input(asked)
        for row in rows:
            if not 0 < len(row) <= self.max_tokens:
                raise InvalidRequest(
                    f"a text has {len(row)} tokens; this model takes 1 to {self.max_tokens}"
                )
            if not 0 <= min(row) <= max(row) < self._text.vocab_size:
                raise InvalidRequest(f"token ids must be from 0 to {self._text.vocab_size - 1}")
        return rows

    def _of_input(self, asked: ClassifyBody) -> Rows:
        given = [asked.input] if isinstance(asked.input, str) else asked.input or []
        texts = [item for item in given if isinstance(item, str)]
        ids = [item for item in given if isinstance(item, int)]
        rows = [item for item in given if isinstance(item, list)]
        if not given or len(given) not in (len(texts), len(ids), len(rows)):
            raise InvalidRequest(
                "input: expected texts, the token ids of one, or of several; not empty"
            )
        if texts:
            special = asked.add_special_tokens is not False
            return self._tokenizer(texts, add_special_tokens=special)["input_ids"]
        return rows or [ids]

    def _of_messages(self, asked: ClassifyBody) -> Rows:
        try:
            text = self._tokenizer.apply_chat_template(
                asked.messages,
                tokenize=False,
                add_generation_prompt=asked.add_generation_prompt,
                **asked.chat_template_kwargs,
            )
        except Exception as error:  # templates raise what they like
            raise InvalidRequest(f"the chat template refuses these messages: {error}") from error
        special = asked.add_special_tokens is True
        return self._tokenizer([text], add_special_tokens=special)["input_ids"]

    def logits(self, rows: Rows) -> list[list[float]]:
        """Return the logits of each row; rows are computed together where that does not change a
        result."""
        pad = self._padding(rows)
        if pad is None:
            return [self.logits([row])[0] for row in rows]
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        with torch.inference_mode():
            given = {"input_ids": ids.to(self._device), "attention_mask": mask.to(self._device)}
            return self._model(**given).logits.float().cpu().tolist()

    def _padding(self, rows: Rows) -> int | None:
        """Return the padding token; None: there is none, and each row is computed separately. A
        model without such a token scores the last token of a row: it gets one here that no row
        has."""
        if self._own_padding is not None or len(rows) == 1:
            self._text.pad_token_id = self._own_padding
            return self._own_padding or 0
        used = set(itertools.chain.from_iterable(rows))
        free = next((i for i in range(self._text.vocab_size) if i not in used), None)
        self._text.pad_token_id = free
        return free

    def probs(self, logits: Sequence[float]) -> list[float]:
        """Return the probabilities of the labels."""
        values = torch.tensor(logits)
        match self._problem:
            case "regression":
                return values.tolist()
            case "multi_label_classification":
                return values.sigmoid().tolist()
            case _:
                return (values.sigmoid() if len(logits) == 1 else values.softmax(0)).tolist()


def _loaded(folder: Path, dtype: torch.dtype) -> Any:
    try:
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except _LOAD_ERRORS as error:
        raise ConfigError(f"cannot load a sequence classifier from {folder}: {error}") from error
    model, found = loaded
    if absent := sorted(found["missing_keys"]):
        raise ConfigError(
            f"{folder} is no sequence classifier: it lacks {', '.join(absent[:5])}, which would be "
            "made up at random; a reward model is saved by "
            f"{type(model).__name__}.from_pretrained(…, num_labels=1).save_pretrained(…)"
        )
    return model


@dataclass(eq=False)
class _Waiting:
    """A row that waits for its logits."""

    row: Sequence[int]
    logits: asyncio.Future[list[float]]


class Batches:
    """The queue of rows. `run` computes them in batches, in a thread."""

    def __init__(self, classifier: Classifier, *, max_rows: int) -> None:
        self._classifier = classifier
        self._max_rows = max_rows
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self.sizes: list[int] = []
        """The number of rows of the last batches."""

    async def logits(self, rows: Rows) -> list[list[float]]:
        """Return the logits of rows, which may be computed with those of other requests.

        Raises:
            TimeoutError: they were not computed in time.
        """
        loop = asyncio.get_running_loop()
        mine = [_Waiting(row, loop.create_future()) for row in rows]
        self._waiting += mine
        self._arrived.set()
        try:
            async with asyncio.timeout(_LIMIT_S):
                return [await one.logits for one in mine]
        finally:
            for one in mine:  # abandoned rows are not computed
                if not one.logits.cancel() and not one.logits.cancelled():
                    one.logits.exception()  # seen, if another row has raised it already

    async def run(self) -> None:
        """Compute waiting rows, until cancelled; the failure of a batch fails only its own
        requests."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            taken, self._waiting = self._waiting, []
            for batch in _batches(taken, self._max_rows):
                await self._compute([one for one in batch if not one.logits.done()])

    async def _compute(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        self.sizes = [*self.sizes[-99:], len(batch)]
        try:
            found = await asyncio.to_thread(self._classifier.logits, [one.row for one in batch])
        except Exception as error:
            log.exception("a batch of %d rows failed", len(batch))
            found = [error] * len(batch)
        for one, its in zip(batch, found, strict=True):
            if one.logits.done():
                continue
            if isinstance(its, Exception):
                one.logits.set_exception(its)
            else:
                one.logits.set_result(its)


def _batches(waiting: Sequence[_Waiting], max_rows: int) -> list[list[_Waiting]]:
    """Return rows of alike lengths together, as many as a batch may have."""
    found: list[list[_Waiting]] = []
    for one in sorted(waiting, key=lambda one: -len(one.row)):
        last = found[-1] if found else None
        if last and len(last) < max_rows and (len(last) + 1) * len(last[0].row) <= _BATCH_TOKENS:
            last.append(one)
        else:
            found.append([one])
    return found


class RewardModelApp(Api):
    """The ASGI app of a classifier: `POST /classify`, `GET /v1/models`, `/health`, `/version`."""

    def __init__(self, classifier: Classifier, batches: Batches, *, name: str) -> None:
        routes = {
            "POST /classify": self._classify,
            "GET /v1/models": self._models,
            "GET /health": self._health,
            "GET /version": self._version,
        }
        super().__init__(
            routes, statuses={InvalidRequest: 400, BodyTooLarge: 413, TimeoutError: 504}
        )
        self._classifier = classifier
        self._batches = batches
        self._name = name
        self._created = int(time.time())
        self._numbers = itertools.count()

    def refusal(self, status: int, text: str) -> Response:
        kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
        detail = protocol.ErrorDetail(message=text, type=kind, code=status)
        return json_response(protocol.ErrorReply(detail), status)

    async def _classify(self, request: Request) -> Response:
        body = await read_body(request.receive, limit_bytes=_MAX_BODY_BYTES)
        try:
            asked = msgspec.json.decode(body, type=ClassifyBody)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not valid: {error}") from error
        if asked.model not in (None, self._name):
            text = f"the model {asked.model!r} is not served; allowed: {self._name!r}"
            return self.refusal(404, text)
        rows = await asyncio.to_thread(self._classifier.tokens, asked)
        logits = await self._batches.logits(rows)
        raw = asked.use_activation is False
        num_tokens = sum(map(len, rows))
        return json_response(
            {
                "id": f"classify-{next(self._numbers)}",
                "object": "list",
                "created": int(time.time()),
                "model": self._name,
                "data": [self._classified(i, its, raw=raw) for i, its in enumerate(logits)],
                "usage": {
                    **{"prompt_tokens": num_tokens, "total_tokens": num_tokens},
                    "completion_tokens": 0,
                },
            }
        )

    def _classified(self, index: int, logits: Sequence[float], *, raw: bool) -> dict[str, Any]:
        best = max(range(len(logits)), key=logits.__getitem__)
        return {
            "index": index,
            "label": self._classifier.labels.get(best),
            "probs": [*logits] if raw else self._classifier.probs(logits),
            "num_classes": len(logits),
        }

    async def _models(self, request: Request) -> Response:
        card = protocol.ModelCard(self._name, self._classifier.max_tokens, created=self._created)
        return json_response(protocol.ModelList([card]))

    async def _health(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def _version(self, request: Request) -> Response:
        return json_response({"version": agentgym_rl.__version__, "engine": "embedded"})


def serve(
    folder: Path, config: EmbeddedEngineConfig, *, host: str, port: int, served_model_name: str
) -> None:
    """Serve the reward model in `folder`; return after SIGTERM or SIGINT. Once it accepts requests,
    one line "reward model ready on http://host:port" goes to stdout. Port 0 picks a free one.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    torch.set_num_threads(config.num_threads)
    classifier = Classifier(folder, config)
    asyncio.run(_serve(classifier, config, host, port, served_model_name))


async def _serve(
    classifier: Classifier, config: EmbeddedEngineConfig, host: str, port: int, name: str
) -> None:
    stopped = stop_signal()
    batches = Batches(classifier, max_rows=config.max_num_seqs)
    app = RewardModelApp(classifier, batches, name=name)
    async with serving(app, host=host, port=port) as url, asyncio.TaskGroup() as tasks:
        computing = tasks.create_task(batches.run(), name="batches")
        sys.stdout.write(f"reward model ready on {url}\n")
        sys.stdout.flush()
        await stopped.wait()
        computing.cancel()
