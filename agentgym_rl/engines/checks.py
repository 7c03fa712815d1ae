"""The check that a running server of another project fits the configuration."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentgym_rl.config import ENGINES
from agentgym_rl.core import ConfigError
from agentgym_rl.models import CANARIES
from agentgym_rl.runtime import HttpClient, read_json

from .kind import Checked, EngineSetup, Query, ServerKind


async def check_server(
    url: str, setup: EngineSetup, *, model_dir: Path, timeout_s: float
) -> Checked:
    """Check that the server at `url`, of any known kind, fits the setup of a run, without changing
    its state.

    Raises:
        ConfigError: it does not answer within `timeout_s`, its kind is unknown, its version is not
            supported, or it was started without a necessary flag. The message names every missing
            flag that can be queried, so that one restart is enough.
    """
    try:
        async with asyncio.timeout(timeout_s), HttpClient() as http:
            query = partial(_query, http, url.rstrip("/"), timeout_s=timeout_s)
            kind, identity = await _recognized(query, url)
            checked, missing = await kind.check(query, url, setup, identity)
            if not missing:
                await _check_tokenizer(query, url, model_dir)
    except TimeoutError:
        raise ConfigError(f"{url} did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ConfigError(f"{url}: {type(error).__name__}: {error}") from error
    if missing:
        raise ConfigError(
            f"the {kind.title} server at {url} does not fit this run; start it with\n  "
            + "\n  ".join(missing)
        )
    return checked


async def _recognized(query: Query, url: str) -> tuple[ServerKind, Any]:
    """Return the kind of the server at `url`, and its answer at the kind's `identity`."""
    tried: list[str] = []
    status, answer = 0, None
    for kind in ENGINES.members.values():
        if not isinstance(kind, ServerKind):
            continue
        status, answer = await query(kind.identity)
        if kind.is_own(status, answer):
            return kind, answer
        tried.append(f"one of {kind.title}: GET {kind.identity}" if tried else _first(kind))
    raise ConfigError(f"{url} is neither {' nor '.join(tried)} says {status} {str(answer)[:300]}")


def _first(kind: ServerKind) -> str:
    return f"a {kind.title} server (GET {kind.identity})"


async def _check_tokenizer(query: Query, url: str, model_dir: Path) -> None:
    """Check that the server's tokenizer splits some texts as that of the model folder does.

    The server's chat template is never used: the gateway renders.
    """
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    for text in CANARIES:
        body = {"prompt": text, "add_special_tokens": False}
        status, answer = await query("/tokenize", body)
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        if status != 200 or not isinstance(answer, dict) or answer.get("tokens") != ours:
            raise ConfigError(
                f"the server at {url} serves another model than {model_dir} (model.path): "
                f"{text!r} is {ours} here, /tokenize says {status} {str(answer)[:300]}"
            )


async def _query(
    http: HttpClient, url: str, path: str, body: Any = None, *, timeout_s: float
) -> tuple[int, Any]:
    """Return the status of an answer, and its JSON, or its text if that is not JSON."""
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
