"""The result of a verification, and the files that it judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .hooks import Why
from .tree import Tree


@dataclass(frozen=True, slots=True)
class VerifierResult:
    """The result of a verification."""

    status: str
    """ok (the full reward), wrong (less), tampered (no nonce in the reward file), timeout, crash
    (the tests were ended by a limit), no_reward (no reward file, or no reward of
    the declared range in it), too_large
    (more files than are taken over)."""
    reward: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """The numbers of the reward file."""
    detail: str = ""
    """The end of the tests' output, or the problem."""
    patch: str = ""
    """The agent's changes of text files, as a unified diff."""
    dropped: Mapping[str, Why] = field(default_factory=dict[str, Why])
    """The agent's files that were left out, with the reasons."""
    is_isolated: bool = False
    """Whether the tests ran with a Python that does not look for modules in the work folder."""
    duration_ms: float = 0.0

    @property
    def has_reward(self) -> bool:
        return self.status in ("ok", "wrong", "tampered")


@dataclass(frozen=True, slots=True)
class Work:
    """The agent's files, as the host has collected them."""

    tree: Tree
    """The work folder."""
    artifacts: Mapping[str, bytes]
    """The files elsewhere that the tests get, by absolute path."""
    dropped: Mapping[str, Why] = field(default_factory=dict[str, Why])
    """The hooks among the files elsewhere, which are left out."""
