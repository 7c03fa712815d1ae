"""Engines to talk to, each with its own account of what it was fed and what it sampled."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from arl_vllm.client import VllmEngine

from agentgym_rl.config import load_config
from agentgym_rl.core import Sampler
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models.resolve import BUNDLED

sys.path.append(str(Path(__file__).parents[2]))  # the comparison is a benchmark's
from benchmarks.exactness_loops import views
from benchmarks.exactness_loops.relay import Relay
from benchmarks.exactness_loops.views import View, journaled, relayed

MAX_MODEL_LEN = 1024
Views = Callable[[], dict[str, View]]
Serving = AbstractAsyncContextManager[tuple[Sampler, Views]]


@dataclass(frozen=True)
class RealEngine:
    """A server process of the bundled model; `journal` is its own, where it keeps one."""

    url: str
    journal: Path | None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Sampler, Views]]:
        """A client of it, and what it says of the requests made meanwhile."""
        relay = Relay(self.url)
        async with relay.serving() as url:
            is_vllm = self.journal is None
            engine = VllmEngine(url, send_seed=not is_vllm, polls_staging=is_vllm)
            await engine.name_version(0)
            before = set(self._journaled())
            try:
                yield engine, lambda: self._views(relay, before)
            finally:
                await engine.close()

    def _journaled(self) -> dict[str, View]:
        return journaled(self.journal) if self.journal else {}

    def _views(self, relay: Relay, before: set[str]) -> dict[str, View]:
        """As relayed; a journal must say the same, and when each token was made."""
        told = relayed(relay.exchanges)
        if self.journal is None:
            return told
        found = {name: view for name, view in self._journaled().items() if name not in before}
        assert found.keys() == told.keys()
        for name, view in found.items():
            assert (view.prompt, view.ids) == (told[name].prompt, told[name].ids)
        return found


@asynccontextmanager
async def scripted(chat: ChatFormat, replies: list[str]) -> AsyncIterator[tuple[Sampler, Views]]:
    """A model that says what it is told to."""
    engine = ScriptedEngine([chat.encode(f"{reply}<|im_end|>") for reply in replies])
    yield engine, lambda: views.scripted(engine.journal)


@contextmanager
def embedded(folder: Path) -> Iterator[RealEngine]:
    """The embedded engine, as `arl train` starts it."""
    from benchmarks._common import engine_server

    journal = folder / "journal.jsonl"
    with engine_server(_config("embedded"), f"--journal={journal}") as url:
        yield RealEngine(url, journal)


@contextmanager
def vllm() -> Iterator[RealEngine]:
    """A vLLM server on the CPU, of the interpreter ARL_VLLM_PYTHON names."""
    from benchmarks._common import engine_server

    with engine_server(_config("vllm", python=os.environ["ARL_VLLM_PYTHON"])) as url:
        yield RealEngine(url, None)


def _config(kind: str, **fields: str):
    engine = {"type": kind, "max_model_len": MAX_MODEL_LEN, **fields}
    keys = {f"engine.{name}": value for name, value in engine.items()}
    return load_config(None, {"model.path": str(BUNDLED), **keys})
