"""Is a vLLM server that somebody else started what the configuration asks for?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from tokenizers import Tokenizer

from agentgym_rl.config import VllmEngineConfig
from agentgym_rl.core.errors import ConfigError

from .build import check_version, reports_spans
from .command import BACKENDS, EXTENSION

_CANARIES = (
    "What is 12 * 34?\n",
    '<|im_start|>user\n{"name": "add"}<|im_end|>\n',
    "  Grüße, 世界 \t🙂",
)
"""Texts that tokenizers of different models split differently."""


class Checked(NamedTuple):
    """What is to be known of a server that fits."""

    has_spans: bool
    """Whether it says which policy version sampled which token."""
    seed: int
    """What its sampling began with."""


async def check_server(
    url: str, config: VllmEngineConfig, *, model_dir: Path, transport: str, timeout_s: float
) -> Checked:
    """Check the server at `url`, without changing anything in it.

    Raises:
        ConfigError: it does not answer within `timeout_s`, is not a vLLM of a supported
            version, or was started without something that is needed; names every missing flag
            it can ask about, so that one restart is enough.
    """
    try:
        async with (
            asyncio.timeout(timeout_s),
            aiohttp.ClientSession(base_url=url.rstrip("/") + "/") as http,
        ):
            status, version = await _get(http, "version")
            if status != 200 or not isinstance(version, dict) or "version" not in version:
                raise ConfigError(f"{url} is no vLLM server: GET /version says {status} {version}")
            release = str(version["version"])
            check_version(release, where=url)
            server = await _server_config(http)
            missing = [line async for line in _missing(http, server, config, transport)]
            if not missing:
                await _check_tokenizer(http, url, model_dir)
    except TimeoutError:
        raise ConfigError(f"{url} did not answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ConfigError(f"{url}: {type(error).__name__}: {error}") from error
    if missing:
        raise ConfigError(
            f"the vLLM server at {url} does not fit this run; start it with\n  "
            + "\n  ".join(missing)
        )
    return Checked(reports_spans(release), server["model_config"]["seed"])


async def _server_config(http: aiohttp.ClientSession) -> dict[str, Any]:
    """What the server was configured to; {} if it has no route to say so."""
    status, info = await _get(http, "server_info", {"config_format": "json"})
    if status == 404:
        return {}
    if status != 200 or not isinstance(info, dict):
        raise ConfigError(f"GET /server_info says {status}: {str(info)[:300]}")
    return info["vllm_config"]


async def _missing(
    http: aiohttp.ClientSession,
    server: dict[str, Any],
    config: VllmEngineConfig,
    transport: str,
) -> AsyncIterator[str]:
    """What the server's command line lacks, a line each."""
    status, _ = await _post(http, "inference/v1/abort_requests", {"request_ids": ["arl-check"]})
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
    server: dict[str, Any], config: VllmEngineConfig, transport: str
) -> Iterator[str]:
    model, cache = server["model_config"], server["cache_config"]
    if model["logprobs_mode"] != "processed_logprobs":
        yield f"--logprobs-mode processed_logprobs (it has {model['logprobs_mode']})"
    backend = (server.get("weight_transfer_config") or {}).get("backend")
    wanted = BACKENDS[transport]
    if backend != wanted:
        yield (
            f"""--weight-transfer-config '{{"backend": "{wanted}"}}' (it has {backend}; """
            f"weights.transport is {transport!r})"
        )
    extension = server["parallel_config"].get("worker_extension_cls")
    if wanted.startswith("arl-") and extension != EXTENSION:
        yield f"--worker-extension-cls {EXTENSION} (it has {extension or 'none'})"
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


async def _check_tokenizer(http: aiohttp.ClientSession, url: str, model_dir: Path) -> None:
    """The server's tokenizer splits some texts as that of the model folder does.

    Its chat template is never used: the gateway renders.
    """
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    for text in _CANARIES:
        body = {"prompt": text, "add_special_tokens": False}
        status, answer = await _post(http, "tokenize", body)
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        if status != 200 or not isinstance(answer, dict) or answer.get("tokens") != ours:
            raise ConfigError(
                f"the vLLM server at {url} serves another model than {model_dir} (model.path): "
                f"{text!r} is {ours} here, /tokenize says {status} {str(answer)[:300]}"
            )


async def _get(
    http: aiohttp.ClientSession, path: str, params: dict[str, str] | None = None
) -> tuple[int, Any]:
    async with http.get(path, params=params) as answer:
        return answer.status, await _body(answer)


async def _post(http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    async with http.post(path, json=body) as answer:
        return answer.status, await _body(answer)


async def _body(answer: aiohttp.ClientResponse) -> Any:
    """The JSON of an answer, or its text where it is none."""
    try:
        return await answer.json(content_type=None)
    except ValueError:
        return await answer.text()
