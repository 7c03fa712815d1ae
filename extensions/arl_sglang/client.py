"""The client of the engine contract over SGLang's own routes.

Differences from vLLM that the exactness of tokens depends on (SGLang 0.5.23, measured):

- `output_token_logprobs` are of the distribution before top-p, top-k and min-p. Requests with one
  of these also request the sampling mask, whose log-probs are of the truncated distribution.
- A pause returns before the scheduler has read it, so a second request, which the scheduler answers
  itself, follows every pause.
- With the overlap scheduler, the last token before a pause in place is labelled with the version
  after it. That pause is refused there.
- An id outside of the vocabulary ends the server; an abort ends all requests whose ids begin alike.
- A server with LoRA keeps the adapters of several versions apart, prefix cache included. A request
  names the one that it is sampled with to its end, which gives the version of all its tokens.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Unpack

import msgspec
from msgspec import Struct

from agentgym_rl.core import (
    AdapterRefused,
    ConfigError,
    ContextLengthError,
    EngineError,
    EngineInfo,
    Interrupt,
    RequestRefused,
    SamplingParams,
    SleepLevel,
    WeightsError,
    link_weights,
    text_settings,
    version_label,
)
from agentgym_rl.core.engine import Memory
from agentgym_rl.engines import (
    NO_LOGPROB,
    ClientOptions,
    EngineClient,
    Measure,
    TokenRequest,
    Words,
    protocol,
    read_counters,
)
from agentgym_rl.engines.client.client import Route
from agentgym_rl.engines.client.deltas import decode, streamed
from agentgym_rl.engines.client.http_engine import wired
from agentgym_rl.storage import check_version
from agentgym_rl.storage.weights_folder import held

from .adapters import adapter_name, write_adapter

GENERATE = "/generate"
LOAD_ADAPTER, UNLOAD_ADAPTER = "/load_lora_adapter", "/unload_lora_adapter"
ALREADY_LOADED = "already loaded"
"""The text of SGLang's refusal of a second adapter with the same name."""
SERVER_INFO = "/server_info"

_encode = msgspec.json.Encoder().encode
_PREFILLED = 'mode="prefill_compute"'


class ServerInfo(Struct, kw_only=True):
    """The part of `GET /server_info` that is used here; it never changes while a server runs."""

    version: str
    served_model_name: str
    dtype: str
    random_seed: int
    max_req_input_len: int
    """The longest prompt, a few tokens shorter than the context."""
    disable_overlap_schedule: bool = False
    disable_radix_cache: bool = False
    enable_deterministic_inference: bool = False
    enable_metrics: bool = False
    incremental_streaming_output: bool = False
    grammar_backend: str | None = None
    sampling_mask_max_tokens: int = 0
    tokenizer_worker_num: int = 1
    dp_size: int = 1
    pp_size: int = 1
    ep_size: int = 1
    speculative_algorithm: str | None = None
    enable_lora: bool | None = None
    """Whether the server computes adapters in addition to its weights, which do not change."""
    max_lora_rank: int | None = None


class _Finish(Struct):
    type: str
    matched: int | str | None = None
    message: str = ""


class _Meta(Struct, kw_only=True):
    finish_reason: _Finish | None = None
    completion_tokens: int = 0
    output_token_logprobs: list[tuple[float | None, int, Any]] = []
    output_token_sampling_logprobs: list[float | None] = []
    output_token_sampling_mask: list[list[int]] = []
    weight_versions: list[protocol.VersionSpan] | None = None


class _Reply(Struct, kw_only=True):
    """The reply of `POST /generate`, complete or as one streamed chunk."""

    output_ids: list[int] = []
    meta_info: _Meta = msgspec.field(default_factory=_Meta)
    error: protocol.ErrorDetail | str | None = None


class _Load(Struct):
    num_running_reqs: float = 0.0
    num_waiting_reqs: float = 0.0
    token_usage: float = 0.0


class _Loads(Struct):
    """The reply of `GET /v1/loads`: of this moment, while /metrics is up to 40 steps old."""

    loads: list[_Load]


class _Known(Struct, frozen=True):
    """The properties of a server, requested once."""

    server: ServerInfo
    context: int
    """The context length in tokens."""


class SglangEngine(EngineClient):
    """An SGLang server behind a URL; see `EngineClient`.

    Args:
        model_dir: The folder of the model that is served: its vocabulary limits the ids of a
            prompt, its config.json and tensors are those of every update.
    """

    words: ClassVar[Words] = Words(
        (
            *("maximum context length", "maximum model length"),
            *("exceeds the maximum allowed length", "longer than the model's context length"),
        )
    )
    metrics: ClassVar[Mapping[Measure, str]] = {
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "kv_use": "sglang:token_usage",
        "tokens": "sglang:generation_tokens_total",
        "put_back": "sglang:num_retracted_requests_total",
        "prompts": "sglang:prompt_tokens_total",
        "prefilled": "sglang:prefilled_tokens_total",
        "reused": "sglang:cached_tokens_total",
    }
    health_path: ClassVar[str] = "/model_info"  # /health samples a token, and fails in a pause
    _label_path: ClassVar[str] = "/model_info"
    _naming: ClassVar[dict[str, Any]] = {"abort_all_requests": False}
    _resuming: ClassVar[Route] = ("/continue_generation", {"torch_empty_cache": False})

    def __init__(
        self,
        url: str,
        *,
        model_dir: Path,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(url, **options)
        self._model_dir = model_dir
        self._asked_before: _Known | None = None

    async def move(self, url: str) -> None:
        await super().move(url)
        self._asked_before = None

    # ------------------------------------------------------------------ sampling
    async def _request(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        stream: bool,
        cache_salt: str,
    ) -> TokenRequest:
        known = await self._known()
        self._check_vocabulary(token_ids)
        self._check_vocabulary(sampling.stop_token_ids)
        room = known.context - len(token_ids)
        if len(token_ids) > known.server.max_req_input_len or room < 1:
            raise ContextLengthError(
                f"{self.url}: a prompt of {len(token_ids)} tokens leaves no room in the context of "
                f"{known.context}, of which SGLang takes {known.server.max_req_input_len} as prompt"
            )
        masked = bool(sampling.truncated_by) and sampling.top_k != 1
        body: dict[str, Any] = {
            # An abort, and so a hang-up, ends every request whose id begins with the id of this
            # one, even one that is sent after it. So no id comes twice or begins another one.
            "rid": f"{uuid.uuid4().hex}:{request_id}",
            "input_ids": wired(token_ids),
            "sampling_params": self._sampling(sampling, known, room),
            "stream": stream,
            "return_logprob": True,
        }
        if cache_salt:
            body["extra_key"] = cache_salt
        label = ""
        if known.server.enable_lora:
            label = (await self._get(self._label_path, protocol.WeightInfo)).weight_version
            body["lora_path"] = adapter_name(label)
        if masked:
            body["return_sampling_mask"] = True
        greedy = sampling.truncated_by == "top_k" and sampling.top_k == 1
        reader = _Reader(masked=masked, greedy=greedy, label=label)
        return TokenRequest(GENERATE, _encode(body), reader)

    def _sampling(self, sampling: SamplingParams, known: _Known, room: int) -> dict[str, Any]:
        """Return the `sampling_params` of a request with `room` tokens left in its context."""
        server = known.server
        params: dict[str, Any] = {
            "max_new_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
        }
        if sampling.truncated_by:  # only a finite top_k has a sampling mask
            most = min(self._vocab_size, server.sampling_mask_max_tokens)
            params["top_k"] = min(sampling.top_k or most, most)
        if sampling.stop:
            params["stop"] = list(sampling.stop)
        if sampling.stop_token_ids:
            params["stop_token_ids"] = list(sampling.stop_token_ids)
        if server.enable_deterministic_inference:  # without one, SGLang draws all alike, with 42
            seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
            params["sampling_seed"] = seed % 2**63
        if sampling.grammar is not None:
            if server.grammar_backend != "llguidance":
                raise RequestRefused(
                    f"{self.url}: grammars are read by llguidance alone, and this server has "
                    f"--grammar-backend {server.grammar_backend}. Start it with llguidance, or set "
                    "gateway.forced=free"
                )
            # With that backend `ebnf` takes any grammar of llguidance: a line that begins with
            # "start:" marks it as Lark, as ours are.
            params["ebnf"] = sampling.grammar
        return params

    @cached_property
    def _vocab_size(self) -> int:
        size = text_settings(self._model_dir).get("vocab_size")
        if not isinstance(size, int):
            raise ConfigError(f"{self._model_dir}/config.json has no vocab_size")
        return size

    def _check_vocabulary(self, token_ids: Sequence[int]) -> None:
        """Refuse ids that the model has no embedding for: one of them ends the server."""
        size = self._vocab_size
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < size:
            bad = next(token for token in token_ids if not 0 <= token < size)
            raise RequestRefused(
                f"{self.url}: token {bad} is not in the vocabulary, whose ids are 0 to {size - 1}"
            )

    # ------------------------------------------------------------------ pauses
    async def pause(self, *, interrupt: Interrupt) -> None:
        """Stop between two decode steps; see `Engine.pause`.

        Raises:
            RequestRefused: `keep` with the overlap scheduler, which labels the last token before
                the pause with the version after it; or `wait`: SGLang has no such pause, an update
                without any waits by itself.
        """
        if interrupt == "wait":
            raise RequestRefused(
                f"{self.url}: SGLang has no pause that waits for requests in flight; it drains in "
                "an update without a pause"
            )
        if interrupt == "keep" and not (await self._known()).server.disable_overlap_schedule:
            raise RequestRefused(
                f"{self.url}: a pause that keeps the KV cache labels a token wrongly with SGLang's "
                "overlap scheduler: start the server with --disable-overlap-schedule, or set "
                "rollout.interrupt to recompute, abort or wait"
            )
        modes = {"keep": "in_place", "recompute": "retract", "abort": "abort"}
        try:
            await self._call("POST", "/pause_generation", {"mode": modes[interrupt]})
            # The reply does not mean that the scheduler has read it, except after an abort. Its
            # messages keep their order, so its answer to a later one does.
            if interrupt == "recompute":
                await self._call("POST", "/flush_cache")
            elif interrupt == "keep":
                await self._call("GET", SERVER_INFO)
        except BaseException as error:  # cancellation too: no other code would resume
            await self._resume_after(error)
            raise

    async def sleep(self, *, level: SleepLevel = 1) -> None:
        raise RequestRefused(
            f"{self.url}: SGLang releases memory only without requests, and ends with any; engines "
            "and ranks that share devices (cluster.colocated) need vLLM or the embedded engine"
        )

    async def wake_up(self, *tags: Memory) -> None:
        """Do nothing: the engine never sleeps."""

    async def is_sleeping(self) -> bool:
        return False

    # ------------------------------------------------------------------ versions
    async def update_weights(self, path: str, *, version: int) -> None:
        """Load a version; see `Engine.update_weights`. The engine is paused while it loads, and
        runs afterwards; for an adapter that it computes in addition to its weights it is not
        paused.

        SGLang loads any tensors that it gets, so all of the version is checked first, as for a
        publication. The server must see its folder.

        Raises:
            AdapterRefused: the version is an adapter, and the server has no LoRA.
            WeightsError: the version is damaged, does not fit the model, or was not loaded. In the
                last case the engine stays paused: it may have tensors of both versions. A failed
                adapter leaves the old one.
            EngineError: the engine could not be reached or failed.
        """
        source = Path(path)
        label = version_label(version, incarnation=self.incarnation)
        has_lora = (await self._known()).server.enable_lora
        with held(source):
            is_adapter = await asyncio.to_thread(check_version, source, self._model_dir)
            if is_adapter and not has_lora:
                raise AdapterRefused(
                    f"{self.url}: weights {source} are a LoRA adapter, which only a publication "
                    "merges for this server, as it was started without --enable-lora"
                )
            if has_lora and not is_adapter:
                raise WeightsError(
                    f"{self.url}: weights {source} are no adapter, and a server started with "
                    "--enable-lora takes no other weights"
                )
            with self._beside(source, is_adapter=is_adapter) as folder:
                if is_adapter:
                    await self._take_adapter(folder, label)
                else:
                    await self._take_weights(folder, label)

    async def _take_weights(self, folder: Path, label: str) -> None:
        await self.pause(interrupt="recompute")
        await self._weights(
            "/update_weights_from_disk",
            {"model_path": str(folder), "weight_version": label, "flush_cache": True},
        )
        await self.resume()

    async def _take_adapter(self, folder: Path, label: str) -> None:
        """Load an adapter; requests are sampled with it from now on, others go on with theirs."""
        body = {"lora_name": adapter_name(label), "lora_path": str(folder)}
        try:
            await self._call("POST", LOAD_ADAPTER, body)
        except RequestRefused as refusal:
            if ALREADY_LOADED not in str(refusal):
                raise WeightsError(str(refusal)) from refusal
            await self._weights(UNLOAD_ADAPTER, body)
            await self._weights(LOAD_ADAPTER, body)
        await self._weights("/update_weight_version", {"new_version": label} | self._naming)

    @contextmanager
    def _beside(self, version: Path, *, is_adapter: bool) -> Generator[Path]:
        """Yield a folder, next to the version's own, from which SGLang can load it."""
        try:
            with tempfile.TemporaryDirectory(prefix=".sglang-", dir=version.parent) as name:
                folder = Path(name)
                folder.chmod(0o755)  # the server may have another user
                if is_adapter:
                    folder = write_adapter(version, folder, self._model_dir)
                else:
                    link_weights(version, self._model_dir, folder)
                yield folder
        except OSError as error:
            raise WeightsError(f"{version} as a folder for SGLang: {error}") from error

    # ------------------------------------------------------------------ information
    async def info(self) -> EngineInfo:
        known = await self._known()
        # /v1/models names the folder of the last update; this name is the one it began with.
        name = known.server.served_model_name
        return EngineInfo(name, known.context, await self.served_version(), "")

    async def counters(self) -> dict[str, float]:
        """Return the metrics of /metrics by name, with the numbers of /v1/loads, which are newer,
        and the tokens computed before a first sampled one as `sglang:prefilled_tokens_total`."""
        raw = await self._call("GET", "/metrics")
        loads = (await self._get("/v1/loads", _Loads)).loads
        try:
            lines = raw.decode().splitlines()
            found = read_counters("\n".join(lines))
            prefills = read_counters("\n".join(line for line in lines if _PREFILLED in line))
        except ValueError as error:
            raise EngineError(f"{self.url}/metrics: {error}") from error
        return found | {
            "sglang:prefilled_tokens_total": prefills.get("sglang:realtime_tokens_total", 0.0),
            "sglang:num_running_reqs": sum(load.num_running_reqs for load in loads),
            "sglang:num_queue_reqs": sum(load.num_waiting_reqs for load in loads),
            "sglang:token_usage": max((load.token_usage for load in loads), default=0.0),
        }

    async def _known(self) -> _Known:
        """Return the server's properties; the first call requests them."""
        if self._asked_before is None:
            server = await self._get(SERVER_INFO, ServerInfo)
            self._asked_before = _Known(server, (await self._card())[1])
        return self._asked_before


class _Reader:
    """A reader of the replies to one request; see `deltas.Read`.

    `masked`: the request included the sampling mask. `greedy`: it left one token to draw from.
    `label`: the version whose adapter the request has named; empty: the reply reports the versions.
    """

    def __init__(self, *, masked: bool, greedy: bool, label: str) -> None:
        self._masked = masked
        self._greedy = greedy
        self._label = label

    def __call__(self, raw: bytes, url: str, before: int) -> protocol.Choice:
        reply = decode(raw, _Reply, url)
        if reply.error is not None:
            raise streamed(url, reply.error, SglangEngine.words)
        meta, ids = reply.meta_info, reply.output_ids
        finish = meta.finish_reason
        new = meta.completion_tokens - before
        if finish is not None and finish.type == "abort" and new < len(ids):
            # The last chunk of a request that was aborted in the queue repeats its last token.
            reply.output_ids = ids = ids[len(ids) - max(new, 0) :]
        if new != len(ids):
            raise EngineError(
                f"{url}: {len(ids)} output_ids after {before} tokens, of {meta.completion_tokens} "
                "in all; was the server started with --incremental-streaming-output?"
            )
        return protocol.Choice(
            token_ids=ids,
            logprobs=protocol.Logprobs(self._logprobs(reply, url, before)),
            finish_reason=None if finish is None else finish.type,
            stop_reason=None if finish is None else finish.matched,
            sampling_mask=self._mask(reply),
            weight_versions=self._versions(reply),
        )

    def _versions(self, reply: _Reply) -> list[protocol.VersionSpan] | None:
        """Return the versions of all tokens so far. On a server with adapters, the reply reports
        only when the server got another label."""
        if not self._label:
            return reply.meta_info.weight_versions
        return [protocol.VersionSpan(self._label, 0, reply.meta_info.completion_tokens)]

    def _logprobs(self, reply: _Reply, url: str, before: int) -> list[protocol.TokenLogprob]:
        meta, ids = reply.meta_info, reply.output_ids
        if self._greedy:
            return [protocol.TokenLogprob(token, 0.0) for token in ids]
        start = len(meta.output_token_logprobs) - len(ids)
        pairs = [(token, logprob) for logprob, token, _ in meta.output_token_logprobs[start:]]
        if start < 0 or [token for token, _ in pairs] != ids:
            raise EngineError(
                f"{url}: from token {before}: {len(ids)} output_ids, and output_token_logprobs of "
                f"{[token for token, _ in pairs][:8]}"
            )
        logprobs = [logprob for _, logprob in pairs]
        if self._masked:
            sampled = meta.output_token_sampling_logprobs
            logprobs = sampled[len(sampled) - len(ids) :]
            if len(logprobs) != len(ids):
                raise EngineError(
                    f"{url}: from token {before}: {len(ids)} output_ids, and "
                    f"{len(sampled)} output_token_sampling_logprobs"
                )
        return [
            protocol.TokenLogprob(token, NO_LOGPROB if logprob is None else logprob)
            for token, logprob in zip(ids, logprobs, strict=True)
        ]

    def _mask(self, reply: _Reply) -> list[list[int]] | None:
        if self._greedy:
            return [[token] for token in reply.output_ids]
        masks = reply.meta_info.output_token_sampling_mask
        return masks[len(masks) - len(reply.output_ids) :] if self._masked else None
