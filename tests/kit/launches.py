"""The launch of a server of another project, of whatever configuration."""

from pathlib import Path
from typing import Any

from agentgym_rl.config import ModelConfig, ServerEngineConfig, load_config
from agentgym_rl.engines import Launch
from agentgym_rl.models.resolve import BUNDLED


def launch(
    engine: ServerEngineConfig,
    *,
    model_dir: Path = BUNDLED,
    port: int = 8001,
    index: int = 0,
    label: str = "0.0",
    run_dir: Path | None = None,
    **values: Any,
) -> Launch:
    """`values`: other sections and keys of the configuration, unchecked beside each other."""
    config = load_config(None, {"engine.type": engine.type})
    config = config.model_copy(
        update={"engine": engine, "model": ModelConfig(path="policy"), "seed": 1, **values}
    )
    return Launch(config, "127.0.0.1", port, index, model_dir, label, run_dir)
