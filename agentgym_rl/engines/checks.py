"""The check that an engine of another project fits the configuration: vLLM or SGLang, installed
here, or as a server that runs already."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from tokenizers import Tokenizer

from agentgym_rl.config import LoraConfig, OwnEngineConfig, ServerEngineConfig
from agentgym_rl.core.engine import ADAPTER_INTERRUPTS, Interrupt
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.models.resolve import CANARIES
from agentgym_rl.runtime.http_client import HttpClient, read_json

from .protocol import SERVED_ADAPTER
from .sglang import command as sglang
from .sglang.client import SERVER_INFO, ServerInfo
from .vllm import command as vllm

_Ask = Callable[..., Awaitable[tuple[int, Any]]]
"""A function that gets a path, or sends JSON to it, and returns the status and the answer."""


Kind = Literal["vllm", "sglang"]


class Checked(NamedTuple):
    """The properties of a server that fits."""

    kind: Kind
    has_spans: bool
    """A flag, true if the server reports which policy version sampled which token."""
    seed: int
    """The seed of its sampling."""


class _Fit(NamedTuple):
    """The part of a run that a server has to fit."""

    config: ServerEngineConfig
    transport: str
    interrupt: Interrupt
    lora: LoraConfig


def check_build(engine: OwnEngineConfig, *, interrupt: Interrupt, sleeps: bool) -> None:
    """Check the vLLM or SGLang of which the run starts servers.

    Raises:
        ConfigError: it is not there, or cannot serve such a run; the message says what to install.
    """
    if engine.type == "vllm":
        build = vllm.find_build(engine.python)
        vllm.check_interrupt(interrupt, has_spans=build.has_spans, where=build.python)
        if sleeps:
            vllm.check_sleep(build)
    elif engine.type == "sglang":
        found = sglang.find_build(engine.python)
        sglang.check_interrupt(interrupt, has_spans=found.has_spans, where=found.python)


async def check_server(
    url: str,
    config: ServerEngineConfig,
    *,
    model_dir: Path,
    transport: str,
    interrupt: Interrupt,
    timeout_s: float,
    lora: LoraConfig = LoraConfig(),  # noqa: B008 - frozen
) -> Checked:
    """Check the server at `url`, of whichever kind it is, without changing anything in it.

    Raises:
        ConfigError: it does not answer within `timeout_s`, is neither vLLM nor SGLang of a
            supported version, or was started without a necessary flag. The message names every
            missing flag that can be queried, so that one restart is enough.
    """
    fit = _Fit(config, transport, interrupt, lora)
    try:
        async with asyncio.timeout(timeout_s), HttpClient() as http:
            ask = partial(_ask, http, url.rstrip("/"), timeout_s=timeout_s)
            checked, missing = await _checked(ask, url, fit)
            if not missing:
                await _check_tokenizer(ask, url, model_dir)
    except TimeoutError:
        raise ConfigError(f"{url} did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ConfigError(f"{url}: {type(error).__name__}: {error}") from error
    if missing:
        name = {"vllm": "vLLM", "sglang": "SGLang"}[checked.kind]
        raise ConfigError(
            f"the {name} server at {url} does not fit this run; start it with\n  "
            + "\n  ".join(missing)
        )
    return checked


async def _checked(ask: _Ask, url: str, fit: _Fit) -> tuple[Checked, list[str]]:
    """Ask the server which of the two it is; return its properties, and the flags it lacks."""
    status, version = await ask("/version")
    if status == 200 and isinstance(version, dict) and "version" in version:
        release = str(version["version"])
        vllm.check_version(release, where=url)
        has_spans = vllm.reports_spans(release)
        vllm.check_interrupt(fit.interrupt, has_spans=has_spans, where=url)
        server = await _server_config(ask)
        missing = [line async for line in _missing(ask, server, fit.config, fit.transport)]
        missing += await _lacking_adapter(ask, fit.lora)
        seed = server["model_config"]["seed"] if server else 0
        return Checked("vllm", has_spans, seed), missing
    status, info = await ask(SERVER_INFO)
    try:
        found = msgspec.convert(info, ServerInfo)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{url} is neither a vLLM server (GET /version) nor one of SGLang: GET {SERVER_INFO} "
            f"says {status} {str(info)[:300]}"
        ) from None
    sglang.check_version(found.version, where=url)
    has_spans = sglang.reports_spans(found.version)
    sglang.check_interrupt(fit.interrupt, has_spans=has_spans, where=url)
    context = (await ask("/v1/models"))[1]["data"][0]["max_model_len"]
    return Checked("sglang", has_spans, found.random_seed), list(_lacks(found, context, fit))


def _lacks(server: ServerInfo, context: int, fit: _Fit) -> Iterator[str]:
    """Yield what the command line of an SGLang server lacks, a line each."""
    config = fit.config
    yield from _lacks_lora(server, fit)
    if not server.incremental_streaming_output:
        yield "--incremental-streaming-output (its streams repeat all tokens in every message)"
    if not server.enable_metrics:
        yield "--enable-metrics (it does not report its load)"
    if server.grammar_backend != "llguidance":
        yield f"--grammar-backend llguidance (it has {server.grammar_backend or 'none'})"
    if fit.interrupt == "keep" and not server.disable_overlap_schedule:
        yield (
            "--disable-overlap-schedule (with it, an update under rollout.interrupt 'keep' labels "
            "a token of each request wrongly; or use recompute, abort or wait)"
        )
    if context < config.max_model_len:
        yield (
            f"--context-length {config.max_model_len} (it has {context}; or lower "
            "engine.max_model_len)"
        )
    if server.dtype.removeprefix("torch.") != config.dtype:
        yield (
            f"--dtype {config.dtype} (it has {server.dtype}; the trainer computes in engine.dtype)"
        )
    if config.prefix_cache == "off" and not server.disable_radix_cache:
        yield "--disable-radix-cache (engine.prefix_cache is 'off')"
    if server.tokenizer_worker_num != 1 or server.dp_size != 1:
        yield "neither --tokenizer-worker-num nor --dp-size (its parts would not pause together)"
    if server.speculative_algorithm:
        yield "no --speculative-algorithm (its log-probs are of another distribution)"


def _lacks_lora(server: ServerInfo, fit: _Fit) -> Iterator[str]:
    """Yield what an SGLang server lacks, or has too much of, to serve versions as `lora.serve`
    says."""
    if fit.lora.serve == "merged":
        if server.enable_lora:
            yield "no --enable-lora (lora.serve is 'merged')"
        return
    if not server.enable_lora or (server.max_lora_rank or 0) < fit.lora.rank:
        # `arl engine` of the run's configuration starts such a server.
        yield (
            f"--enable-lora --max-lora-rank {fit.lora.rank} --lora-target-modules and the names of "
            "the layers (lora.serve is 'adapter')"
        )
    if fit.interrupt not in ADAPTER_INTERRUPTS or fit.transport != "shm":
        yield (
            "no --enable-lora, and lora.serve merged; or set rollout.interrupt to abort or wait, "
            f"got {fit.interrupt!r}, and weights.transport to shm, got {fit.transport!r}"
        )


async def _server_config(ask: _Ask) -> dict[str, Any]:
    """Return the configuration of a vLLM server; {} if it has no route that reports it."""
    status, info = await ask("/server_info?config_format=json")
    if status == 404:
        return {}
    if status != 200 or not isinstance(info, dict):
        raise ConfigError(f"GET /server_info says {status}: {str(info)[:300]}")
    return info["vllm_config"]


async def _missing(
    ask: _Ask,
    server: dict[str, Any],
    config: ServerEngineConfig,
    transport: str,
) -> AsyncIterator[str]:
    """Yield what the command line of a vLLM server lacks, a line each."""
    status, _ = await ask("/inference/v1/abort_requests", {"request_ids": ["arl-check"]})
    if status in (403, 404):
        yield "--enable-scale-out (the token route is off)"
    if not server:
        yield (
            "VLLM_SERVER_DEV_MODE=1 in its environment (it has no routes to pause and update it, "
            "nor to ask about its other flags)"
        )
        return
    for line in _misconfigured(server, config, transport):
        yield line


def _misconfigured(
    server: dict[str, Any], config: ServerEngineConfig, transport: str
) -> Iterator[str]:
    model, cache = server["model_config"], server["cache_config"]
    if model["logprobs_mode"] != "processed_logprobs":
        yield f"--logprobs-mode processed_logprobs (it has {model['logprobs_mode']})"
    backend = (server.get("weight_transfer_config") or {}).get("backend")
    wanted = vllm.BACKENDS[transport]
    if backend != wanted:
        yield (
            f"""--weight-transfer-config '{{"backend": "{wanted}"}}' (it has {backend}; """
            f"weights.transport is {transport!r})"
        )
    extension = server["parallel_config"].get("worker_extension_cls")
    if wanted.startswith("arl-") and extension != vllm.EXTENSION:
        yield f"--worker-extension-cls {vllm.EXTENSION} (it has {extension or 'none'})"
    if model["max_model_len"] < config.max_model_len:
        yield (
            f"--max-model-len {config.max_model_len} (it has {model['max_model_len']}; "
            "or lower engine.max_model_len)"
        )
    held = server.get("structured_outputs_config") or {}
    if held.get("backend", "auto") not in ("auto", "guidance"):
        yield f"--structured-outputs-config.backend guidance (it has {held['backend']})"
    if held.get("reasoning_parser"):
        yield "no --reasoning-parser (grammars would not hold before it has seen a thought end)"
    dtype = str(model["dtype"]).removeprefix("torch.")
    if dtype != config.dtype:
        yield f"--dtype {config.dtype} (it has {dtype}; the trainer computes in engine.dtype)"
    if config.prefix_cache == "off" and cache.get("enable_prefix_caching"):
        yield "--no-enable-prefix-caching (engine.prefix_cache is 'off')"


async def _lacking_adapter(ask: _Ask, lora: LoraConfig) -> list[str]:
    """Return the flags that the server lacks, or has too many of, to serve versions as `lora.serve`
    says."""
    status, models = await ask("/v1/models")
    if status != 200 or not isinstance(models, dict):
        raise ConfigError(f"GET /v1/models says {status}: {str(models)[:300]}")
    has_one = any(card.get("id") == SERVED_ADAPTER for card in models["data"])
    if lora.serve == "merged":
        return ["no --lora-modules (lora.serve is 'merged')"] * has_one
    # `arl engine` of the run's configuration writes such a folder, and starts such a server.
    flags = " ".join(vllm.adapter_flags(lora, "FOLDER"))
    return [] if has_one else [f"{flags}, FOLDER with an adapter of peft that changes nothing"]


async def _check_tokenizer(ask: _Ask, url: str, model_dir: Path) -> None:
    """Check that the server's tokenizer splits some texts as that of the model folder does.

    The server's chat template is never used: the gateway renders.
    """
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    for text in CANARIES:
        body = {"prompt": text, "add_special_tokens": False}
        status, answer = await ask("/tokenize", body)
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        if status != 200 or not isinstance(answer, dict) or answer.get("tokens") != ours:
            raise ConfigError(
                f"the server at {url} serves another model than {model_dir} (model.path): "
                f"{text!r} is {ours} here, /tokenize says {status} {str(answer)[:300]}"
            )


async def _ask(
    http: HttpClient, url: str, path: str, body: Any = None, *, timeout_s: float
) -> tuple[int, Any]:
    """Return the status of an answer, and its JSON, or its text if it is none."""
    status, answer = await http.call(
        url,
        "GET" if body is None else "POST",
        path,
        body=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        timeout_s=timeout_s,
    )
    try:
        return status, read_json(answer)
    except ValueError:
        return status, answer.decode(errors="replace")
