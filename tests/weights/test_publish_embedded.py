"""The publisher and the embedded engine, over real HTTP; for updates see tests/contracts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from arl_embedded.app import App
from arl_embedded.engine import EmbeddedEngine
from arl_embedded.model import load_model
from arl_embedded.section import EmbeddedEngineConfig
from safetensors.torch import load_file

from agentgym_rl.core import WeightsError
from agentgym_rl.engines import HttpEngine
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import serving
from agentgym_rl.weights import Publisher, SharedFiles
from agentgym_rl.weights.publish import Published
from tests.kit.publishing import published


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """URL of an engine that serves the bundled model as version 0."""
    torch.set_num_threads(1)
    config = EmbeddedEngineConfig(device="cpu", max_model_len=256)
    engine = EmbeddedEngine(
        load_model(BUNDLED, config), model_dir=BUNDLED, config=config, seed=0, weight_version="0.0"
    )
    app = App(engine, served_model_name="tiny")
    async with serving(app, host="127.0.0.1", port=0) as url, engine.running():
        yield url


async def publish(folder: Path, engines: dict[str, str], *, damage: bool = False) -> Published:
    state = load_file(BUNDLED / "model.safetensors")
    if damage:
        state = {name: tensor[:1] for name, tensor in state.items()}
    publisher = Publisher(
        transport=SharedFiles(folder), interrupt="keep", timeout_s=20, polls_staging=False
    )
    publisher.prepare(1, state)
    return await published(publisher, engines, 1)


def test_weights_that_do_not_fit_leave_the_engine_as_it_was(tmp_path):
    async def play() -> int:
        async with served() as url:
            with pytest.raises(WeightsError, match=r"engine-0 .*: POST /update_weights: HTTP"):
                await publish(tmp_path, {"engine-0": url}, damage=True)
            assert (await publish(tmp_path, {"engine-0": url})).served == ("engine-0",)
            client = HttpEngine(url, timeout_s=20)
            info = await client.info()
            await client.close()
            return info.version

    assert asyncio.run(play()) == 1
