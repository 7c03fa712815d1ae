"""For all tests."""

import asyncio
import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn.server
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("here", deadline=None)
settings.load_profile("here")

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data() -> Path:
    """Return the folder with gsm8k/ and code/; a test without it is skipped.

    `ARL_SHARED_DATA`, or else `../shared/data` beside the repository.
    """
    folder = Path(os.environ.get("ARL_SHARED_DATA") or _BESIDE)
    if not folder.is_dir():
        pytest.skip(f"no data sets at {folder}; ARL_SHARED_DATA says where they are")
    return folder


class _Soon:
    """The module asyncio as uvicorn sees it, with short sleeps: each server sleeps 0.2 s to end."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = _Soon()  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import all tests without collecting garbage, of which imports make none: it takes almost half
    of the time of a start. Later collections leave out what imports have made, and are rarer than
    Python's, each of whose looks at all the modules that tests import on their way."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 20)
        gc.enable()


_LOGGERS = (None, "agentgym_rl", "arl_envs", "arl_agents", "arl_sandboxes")


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """Put levels and handlers of loggers back after each test: commands set them for a process."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
