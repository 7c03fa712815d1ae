"""The publisher and the embedded engine, over real HTTP, while it samples."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentgym_rl.config import EmbeddedEngineConfig
from agentgym_rl.core.engine import PAUSE_PATHS, Interrupt, SamplingParams
from agentgym_rl.engines.client.client import HttpEngine
from agentgym_rl.engines.embedded.app import App
from agentgym_rl.engines.embedded.engine import EmbeddedEngine
from agentgym_rl.engines.embedded.model import load_model
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime.http_server import serving
from agentgym_rl.weights.publish import PublicationFailed, Published, Publisher
from agentgym_rl.weights.transport import SharedFiles

LONG = SamplingParams(max_tokens=200, temperature=1.0, stop_token_ids=())


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


async def publish(
    folder: Path, engines: dict[str, str], *, interrupt: Interrupt = "keep", damage: bool = False
) -> Published:
    state = load_file(BUNDLED / "model.safetensors")
    if damage:
        state = {name: tensor[:1] for name, tensor in state.items()}
    publisher = Publisher(
        transport=SharedFiles(folder), interrupt=interrupt, timeout_s=20, polls_staging=False
    )
    publisher.prepare(1, state)
    return await asyncio.to_thread(publisher.publish, engines, 1)


@pytest.mark.slow
@pytest.mark.parametrize("interrupt", PAUSE_PATHS)
def test_requests_in_flight_meet_the_new_version(tmp_path, interrupt):
    async def play() -> tuple[Published, list[int]]:
        async with served() as url:
            client = HttpEngine(url, timeout_s=20)
            versions: list[int] = []
            published: list[Published] = []
            async for delta in client.generate(
                [5, 9], LONG, request_id="r", session_id="s", stream=True
            ):
                versions.extend(delta.versions)
                if not published:
                    published.append(await publish(tmp_path, {"e": url}, interrupt=interrupt))
            await client.close()
            return published[0], versions

    done, versions = asyncio.run(play())
    assert done.served == ("e",)
    assert done.pause_s < done.seconds
    assert versions == sorted(versions)
    assert versions[0] == 0


def test_weights_that_do_not_fit_leave_the_engine_as_it_was(tmp_path):
    async def play() -> int:
        async with served() as url:
            with pytest.raises(PublicationFailed, match=r"engine-0 .*: POST /update_weights: HTTP"):
                await publish(tmp_path, {"engine-0": url}, damage=True)
            assert (await publish(tmp_path, {"engine-0": url})).served == ("engine-0",)
            client = HttpEngine(url, timeout_s=20)
            info = await client.info()
            await client.close()
            return info.version

    assert asyncio.run(play()) == 1
