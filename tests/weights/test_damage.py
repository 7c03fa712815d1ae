"""The table of damaged publications (tests/kit/damage.py) over the embedded engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch
from arl_embedded.app import App
from arl_embedded.engine import EmbeddedEngine
from arl_embedded.model import load_model
from arl_embedded.section import EmbeddedEngineConfig

from agentgym_rl.engines import HttpEngine
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import serving
from tests.kit.cases import cases
from tests.kit.damage import DEATHS, FILES, TENSORS, Matrix


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An engine that serves in a thread of its own, since the publisher waits for it."""
    torch.set_num_threads(1)
    config = EmbeddedEngineConfig(device="cpu", max_model_len=256)
    found: list[str] = []
    ready, done = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        engine = EmbeddedEngine(
            load_model(BUNDLED, config), model_dir=BUNDLED, config=config, seed=0,
            weight_version="0.0",
        )  # fmt: skip
        app = App(engine, served_model_name="tiny")
        async with serving(app, host="127.0.0.1", port=0) as url, engine.running():
            found.append(url)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(120)
    yield found[0]
    loop.call_soon_threadsafe(done.set)
    thread.join(30)
    loop.close()


@pytest.fixture(scope="module")
def table(url, tmp_path_factory) -> Matrix:
    folder = tmp_path_factory.mktemp("versions")
    return Matrix(url=url, folder=folder, make_client=lambda: HttpEngine(url, timeout_s=60))


@cases("case", TENSORS)
def test_damaged_tensors_are_refused_and_the_old_ones_serve(table, case):
    table.check_tensors(case)


@cases("case", FILES)
def test_a_damaged_file_is_refused_and_the_old_one_serves(table, case):
    table.check_file(case)


@cases("before", DEATHS["vllm"])
def test_a_trainer_that_dies_leaves_one_version(table, before, monkeypatch):
    table.check_death(before, monkeypatch)
