"""The HTTP protocol of engines as msgspec structs, shared by server and client.

Field names and shapes of `/inference/v1/generate` are those of a server of another project, so that
one client works with both (arl_vllm/client.py); `decode_times` is our one extension. Unknown fields
of a request are refused, unknown fields of a response are ignored.
"""

from __future__ import annotations

import base64
import io
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

GENERATE = "/inference/v1/generate"
ABORT_REQUESTS = "/inference/v1/abort_requests"
COMPLETIONS = "/v1/completions"
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
UNNAMED = "default"
"""The label of the weights that a server was started with, until it gets another one."""
DONE = b"[DONE]"
"""The payload of the last server-sent event of a stream."""

NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Label = Annotated[str, Meta(min_length=1, max_length=128)]


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """A grammar in Lark, as read by llguidance, that a complete reply must match."""

    grammar: Annotated[str, Meta(min_length=1)]


class SamplingBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The `sampling_params` of a request. `top_k` 0 or -1 is off; `temperature` 0 is greedy."""

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """The longest reply; None: up to the context length."""
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
    """The number of alternatives: 0 reports only the sampled token, None nothing; more is not
    served here."""
    routed_experts_prompt_start: Annotated[int, Meta(ge=0)] | None = None
    """The position from which on the reply has the `routed_experts`; None: the embedded engine
    sends none, others may send all."""
    detokenize: bool = True
    """The request for text. False saves a server the text, which is not used here, and which it
    needs for `stop` strings. The embedded engine makes text only for those."""


class GenerateBody(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of `POST /inference/v1/generate`: token ids in."""

    token_ids: list[int]
    sampling_params: SamplingBody = msgspec.field(default_factory=SamplingBody)
    request_id: str | None = None
    model: str | None = None
    stream: bool = False
    cache_salt: str | None = None
    """The key that separates prefix caches of different policy versions; ignored without a
    cache."""


class Alternative(Struct, gc=False):
    token_id: int
    logprob: float


class TokenLogprob(Struct, omit_defaults=True, gc=False):
    token_id: int
    logprob: float
    top_logprobs: msgspec.Raw = msgspec.Raw()
    """The most likely tokens, as a list of `Alternative`: as many as the request's `logprobs`, at
    least the sampled one. Seldom read, so it stays JSON."""


class Logprobs(Struct):
    content: list[TokenLogprob]


class Paused(Struct):
    """The reply of `GET /is_paused`."""

    is_paused: bool


class Sleeping(Struct):
    """The reply of `GET /is_sleeping`."""

    is_sleeping: bool


class Woken(Struct):
    """The reply of `POST /wake_up`: "awake", or "sleeping" while some memory is still released."""

    status: str


class VersionSpan(Struct):
    """A span [start, end) of the complete output that was sampled by `version`."""

    version: str
    start: int
    end: int


class Choice(Struct, kw_only=True):
    """A part of a request's output; the last (or only) one carries `finish_reason`.

    Spans index the complete output, also in a streamed chunk. `decode_times` has one entry per
    token of this chunk: CLOCK_MONOTONIC seconds at the end of the token's decode step.
    `sampling_mask` has the ids from which each token was drawn (the embedded engine: for requests
    with `top_p`, `top_k` or `min_p`). `routed_experts` are the experts of prompt and output, all
    but the last token (`experts_text`), with the finish_reason. Servers may need a flag for each.
    """

    index: int = 0
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    sampling_mask: list[list[int]] | None = None
    weight_versions: list[VersionSpan] | None = None
    decode_times: list[float] | None = None
    routed_experts: str | None = None


class GenerateReply(Struct, kw_only=True):
    """The reply of `/inference/v1/generate`, complete or as one streamed chunk."""

    request_id: str = ""
    choices: list[Choice] = msgspec.field(default_factory=list)
    error: ErrorDetail | str | None = None
    """The error in a streamed chunk, if the engine failed after the headers were sent."""


class ErrorDetail(Struct, kw_only=True):
    message: str
    type: str = "BadRequestError"
    param: str | None = None
    code: int | str | None = None


class ErrorReply(Struct, omit_defaults=True):
    """The body of a status that is not 2xx. Some routes send a bare text; unknown ones send only
    `detail`, as FastAPI does."""

    error: ErrorDetail | str | None = None
    detail: Any = None


class StreamOptions(Struct):
    """OpenAI's `stream_options`; `include_usage`: the last chunk has the number of tokens."""

    include_usage: bool = False


class CompletionBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/completions`: OpenAI's fields, and those that a token needs.

    The fields from `suffix` on are OpenAI's, and are served only with these values."""

    model: str | None = None
    prompt: Any
    """A text or token ids, or a list of these."""
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    """The number of replies for each prompt; with a `seed`, reply k gets seed + k."""
    max_tokens: Annotated[int, Meta(ge=0)] | None = 16
    """The tokens to sample; 0 only with `echo`."""
    temperature: NonNegative | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] = 0
    min_p: Fraction = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    """0 reports the log-prob of the sampled token; more is not served here."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    """Whether each choice has `prompt_token_ids` and `token_ids`."""
    cache_salt: str | None = None
    user: str | None = None
    """The name of a user, which has no effect."""
    echo: bool | None = None
    """Whether the reply has the log-probs of the prompt itself, at temperature 1 over the complete
    vocabulary; only with `max_tokens` 0 and `logprobs`."""
    suffix: None = None
    best_of: Literal[1] | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None


class CompletionLogprobs(Struct):
    """The log-probs of a text; offsets count characters from the start of the reply."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """The log-probs; None for the first token of a prompt, which nothing predicts."""
    top_logprobs: list[dict[str, float] | None]
    """The token alone, the answer to `logprobs` 0."""
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    """A part of a reply; the last (or only) one has `finish_reason`."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(Struct, kw_only=True, omit_defaults=True):
    """The reply of `/v1/completions`, complete or as one streamed chunk."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = msgspec.field(default="text_completion")
    usage: Usage | None = None
    error: ErrorDetail | None = None
    """The error in a streamed chunk, if the engine failed after the headers were sent."""


class AbortBody(Struct, forbid_unknown_fields=True):
    """The body of `POST /inference/v1/abort_requests`."""

    request_ids: list[str]


class UpdateInfo(Struct, forbid_unknown_fields=True):
    path: str
    """The folder of a version (`weights/files.py`) that the engine can read."""


class UpdateBody(Struct, forbid_unknown_fields=True):
    """The body of `POST /update_weights`."""

    update_info: UpdateInfo


class FinishBody(Struct, forbid_unknown_fields=True):
    """The body of `POST /finish_weight_update`."""

    weight_version: Label


class NewVersionBody(Struct, forbid_unknown_fields=True):
    """The body of `POST /update_weight_version`: another label for the weights being served."""

    new_version: Label


class WeightInfo(Struct):
    """The reply of `GET /weight_info`; the label is `UNNAMED` before the first update."""

    weight_version: str


def experts_text(experts: npt.NDArray[np.integer[Any]]) -> str:
    """Return the experts of tokens, [n, layers, k], as text: a file of numpy, in base 64."""
    with io.BytesIO() as file:
        np.save(file, experts, allow_pickle=False)
        return base64.b64encode(file.getbuffer()).decode("ascii")


def read_experts(text: str) -> npt.NDArray[np.int16]:
    """Return the experts in a text of `experts_text`.

    Raises:
        ValueError: the text is malformed.
    """
    with io.BytesIO(base64.b64decode(text, validate=True)) as file:
        found = np.load(file, allow_pickle=False)
    if found.ndim != 3 or found.dtype.kind not in "iu":
        raise ValueError(f"routed_experts of shape {found.shape} and {found.dtype}")
    return found.astype(np.int16)


class VersionInfo(Struct):
    """The reply of `GET /version`; other servers send only `version`."""

    version: str
    tokenizer_hash: str = ""


class ModelCard(Struct):
    id: str
    max_model_len: int | None
    """The context length; None for an adapter, which is listed after its base."""
    object: str = "model"
    owned_by: str = "agentgym-rl"
    created: int = 0
    """The time at which it was loaded, in seconds of the Unix epoch."""


class ModelList(Struct):
    """The reply of `GET /v1/models`."""

    data: list[ModelCard]
    object: str = "list"
