"""The process whose memory `arl bench real` measures: an engine without HTTP that loads a model,
decodes, and takes new versions. It prints bytes as JSON; see `_real_engine.peaks`."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path

import torch
from arl_embedded.engine import EmbeddedEngine
from arl_embedded.model import load_model
from arl_embedded.section import EmbeddedEngineConfig

from agentgym_rl.config import load_config
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.weights.files import stored_versions

from ._memory import begin_peak, memory
from ._reuse import reply

_PROMPT = list(range(3, 67))


def _peak(*, afresh: bool) -> tuple[int, int]:
    """Return (highest, present) resident bytes; `afresh`: restart the measurement of the
    highest."""
    if afresh:
        gc.collect()
        begin_peak()
    return memory("VmHWM"), memory("VmRSS")


async def _play(folder: Path, config: EmbeddedEngineConfig, versions: list[Path]) -> list[int]:
    """Return the peak and the end of loading and decoding, then of the updates."""
    model = load_model(folder, config)
    engine = EmbeddedEngine(model, model_dir=folder, config=config, seed=0, weight_version="0.0")
    found: list[int] = []
    async with engine.running():
        await reply(engine, _PROMPT, 4)
        found += _without_cache(engine)
        _peak(afresh=True)
        for number, version in enumerate(versions, 1):
            engine.start_update()
            await engine.stage(version)
            await engine.finish_update(f"0.{number}")
            await reply(engine, _PROMPT, 4)
        found += _without_cache(engine)
    return found


def _without_cache(engine: EmbeddedEngine) -> list[int]:
    return [amount - engine.model.decoder.cache_bytes for amount in _peak(afresh=False)]


def main() -> None:
    folder, dtype, scratch = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    keys = {"engine.device": "cpu", "engine.dtype": dtype}
    config = load_config(None, keys).engine
    assert isinstance(config, EmbeddedEngineConfig)
    asyncio.run(_play(BUNDLED, config, []))  # imports, and memory that libraries keep
    _, before = _peak(afresh=True)
    found = asyncio.run(_play(folder, config, stored_versions(scratch)))
    names = ("load", "loaded", "update", "updated")
    sys.stdout.write(json.dumps({n: b - before for n, b in zip(names, found, strict=True)}))


if __name__ == "__main__":
    main()
