"""The command `arl engine --backend embedded`: load a model and serve it until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from pathlib import Path

import torch
import uvloop

from agentgym_rl.core import EngineError
from agentgym_rl.runtime import first_of, serving, stop_signal

from .app import App
from .engine import EmbeddedEngine
from .journal import Journal
from .model import load_model
from .section import EmbeddedEngineConfig

log = logging.getLogger(__name__)

_LAST_WORDS_S = 0.5
"""The time after the decode thread's death for open requests to get their 500, /health its 503."""


def serve(
    *,
    model_dir: Path,
    config: EmbeddedEngineConfig,
    host: str = "127.0.0.1",
    port: int = 0,
    seed: int = 0,
    weight_version: str = "0.0",
    journal: Path | None = None,
    served_model_name: str = "",
) -> None:
    """Serve the model of `model_dir` over HTTP; return after SIGTERM or SIGINT, within 2 s.

    Once it accepts requests, one line "engine ready on http://host:port" goes to stdout.

    Args:
        port: The port; 0 picks a free one.
        seed: The seed of requests that bring none of their own; with it, the same `request_id`
            gets the same random numbers.
        weight_version: The label of the weights in `model_dir`.
        journal: The file to which every request is appended as a JSON line when it ends.
        served_model_name: The name shown by /v1/models (default: the folder's name).

    Raises:
        ConfigError: the model cannot be loaded.
        EngineError: the decode thread died; its own exception is the cause.
    """
    torch.set_num_threads(config.num_threads)
    model = load_model(model_dir, config)
    with contextlib.ExitStack() as stack:
        book = stack.enter_context(contextlib.closing(Journal(journal))) if journal else None
        engine = EmbeddedEngine(
            model,
            model_dir=model_dir,
            config=config,
            seed=seed,
            weight_version=weight_version,
            journal=book,
        )
        run_engine(engine, host=host, port=port, served_model_name=served_model_name)
    gc.freeze()  # else the end of the process visits every object of torch, a second's work


def run_engine(
    engine: EmbeddedEngine, *, host: str, port: int, served_model_name: str = ""
) -> None:
    """Serve a built engine; see `serve`."""
    app = App(engine, served_model_name=served_model_name or engine.model_dir.name)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(engine, app, host, port))
    if engine.loop.failure is not None:
        raise EngineError("the decode thread died") from engine.loop.failure


async def _serve(engine: EmbeddedEngine, app: App, host: str, port: int) -> None:
    stopped = stop_signal()
    async with serving(app, host=host, port=port) as url, engine.running():
        sys.stdout.write(f"engine ready on {url}\n")
        sys.stdout.flush()
        log.info("engine ready on %s, %s decoder", url, engine.model.decoder.name)
        await first_of(stopped.wait(), engine.died.wait())
        if engine.died.is_set():
            await asyncio.sleep(_LAST_WORDS_S)
