"""The HTTP protocol of engines as msgspec structs, shared by server and client.

Field names and shapes are those of vLLM 0.32's `/inference/v1/generate`, so that one client
works with both; `decode_times` is our one extension. Unknown fields of a request are refused,
unknown fields of a response are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

GENERATE = "/inference/v1/generate"
ABORT_REQUESTS = "/inference/v1/abort_requests"
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
UNNAMED = "default"
"""vLLM's label of the weights it was started with, until it is told another."""
DONE = b"[DONE]"
"""Payload of the last server-sent event of a stream."""

NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Label = Annotated[str, Meta(min_length=1, max_length=128)]


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """What a whole reply must match: a grammar in Lark, as llguidance reads it."""

    grammar: Annotated[str, Meta(min_length=1)]


class SamplingBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`sampling_params` of a request. `top_k` 0 or -1 is off; `temperature` 0 is greedy."""

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """None: up to the context length."""
    temperature: NonNegative = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = 0
    min_p: Fraction = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    structured_outputs: StructuredOutputs | None = None
    logprobs: int | None = None
    """0 reports the sampled token; None reports nothing; more is not served here."""
    detokenize: bool = True
    """False spares vLLM the text, which nobody reads here; it needs it for `stop` strings. The
    embedded engine makes text for those alone, and so has nothing to spare."""


class GenerateBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /inference/v1/generate`: token ids in."""

    token_ids: list[int]
    sampling_params: SamplingBody = msgspec.field(default_factory=SamplingBody)
    request_id: str | None = None
    model: str | None = None
    stream: bool = False
    cache_salt: str | None = None
    """Separates prefix caches of different policy versions; nothing to an engine without one."""


class TokenLogprob(Struct, gc=False):
    token_id: int
    logprob: float


class Logprobs(Struct):
    content: list[TokenLogprob]


class Sleeping(Struct):
    """Answer of `GET /is_sleeping`."""

    is_sleeping: bool


class Woken(Struct):
    """Answer of `POST /wake_up`: "awake", or "sleeping" while some memory is still given back."""

    status: str


class VersionSpan(Struct):
    """Tokens [start, end) of the whole output were sampled by `version`."""

    version: str
    start: int
    end: int


class Choice(Struct, kw_only=True):
    """Some sampled tokens; the last (or only) one of a request carries `finish_reason`.

    Spans index the whole output, also in a streamed chunk. `decode_times` has one entry per
    token of this chunk: CLOCK_MONOTONIC seconds at the end of the token's decode step.
    """

    index: int = 0
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[VersionSpan] | None = None
    decode_times: list[float] | None = None


class GenerateReply(Struct, kw_only=True):
    """Reply of `/inference/v1/generate`, whole or as one streamed chunk."""

    request_id: str = ""
    choices: list[Choice] = msgspec.field(default_factory=list)
    error: ErrorDetail | str | None = None
    """Set in a streamed chunk when the engine failed after the headers were sent."""


class ErrorDetail(Struct, kw_only=True):
    message: str
    type: str = "BadRequestError"
    param: str | None = None
    code: int | str | None = None


class ErrorReply(Struct, omit_defaults=True):
    """Body of a status that is not 2xx. vLLM's RL routes and its middleware send a bare text;
    routes it does not have, `detail` alone, as FastAPI does."""

    error: ErrorDetail | str | None = None
    detail: Any = None


class AbortBody(Struct, forbid_unknown_fields=True):
    """Body of `POST /inference/v1/abort_requests`."""

    request_ids: list[str]


class UpdateInfo(Struct, forbid_unknown_fields=True):
    path: str
    """A safetensors file the engine can read."""


class UpdateBody(Struct, forbid_unknown_fields=True):
    """Body of `POST /update_weights`."""

    update_info: UpdateInfo


class FinishBody(Struct, forbid_unknown_fields=True):
    """Body of `POST /finish_weight_update`."""

    weight_version: Label


class NewVersionBody(Struct, forbid_unknown_fields=True):
    """Body of `POST /update_weight_version`: another label for the weights being served."""

    new_version: Label


class WeightInfo(Struct):
    """Reply of `GET /weight_info`; `UNNAMED` from a vLLM server that has had no update."""

    weight_version: str


class Staging(Struct):
    """How far one vLLM worker is with the weights it was told to load."""

    state: Literal["idle", "staging", "ready", "failed"]
    error: str = ""
    path: str = ""


class StagingReply(Struct):
    """Reply of `POST /collective_rpc` for `arl_staging`: one entry per worker."""

    results: list[Staging]


class VersionInfo(Struct):
    """Reply of `GET /version`; vLLM sends `version` alone."""

    version: str
    tokenizer_hash: str = ""


class ModelCard(Struct):
    id: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "agentgym-rl"


class ModelList(Struct):
    """Reply of `GET /v1/models`."""

    data: list[ModelCard]
    object: str = "list"
