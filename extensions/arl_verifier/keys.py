"""The section `verifier`, which this extension adds to the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from agentgym_rl.core import Anytime, Section, ServiceKeys


class VerifierConfig(Section):
    """The processes for verifiers that may hang, crash, or run the judged code; started if the
    environment uses them."""

    num_workers: int = Field(default=2, ge=1, le=128)
    """The number of processes, each of which answers one call at a time."""
    timeout_s: float = Field(default=5.0, gt=0)
    """The time limit of a call, from the moment a free process takes it; a call is tried twice."""
    memory_mb: int = Field(default=2048, ge=64)
    """The memory (address space) that a process may take."""


class VerifierKeys(ServiceKeys):
    """The section `verifier`, added to the configuration."""

    after = "sandbox"

    verifier: Anytime[VerifierConfig] = VerifierConfig()

    @property
    def verifier_options(self) -> Mapping[str, Any]:
        return {**super().verifier_options, **dict(self.verifier)}
