"""A model to evaluate, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentgym_rl.config import Config, EndpointConfig
from agentgym_rl.models.resolve import model_name
from agentgym_rl.storage.run_folder import shown


@dataclass(frozen=True, slots=True)
class Asked:
    """`config.model`; with `checkpoint` (a run's `checkpoints/step-N`) its weights take the place
    of that model's."""

    config: Config
    checkpoint: Path | None = None

    @property
    def model(self) -> str:
        """Its name in results."""
        if isinstance(self.config.engine, EndpointConfig):
            return self.config.model.path
        return shown(self.checkpoint) if self.checkpoint else model_name(self.config)
