"""The trained tokens of a run as flat arrays; rows are read again when they are needed.

Legend: [N] trained tokens, in the order of their episodes, rows and positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from agentgym_rl.core import NOT_SAMPLED, UNKNOWN_EXPERT, BoolArray, FloatArray, IntArray, Row
from agentgym_rl.core.token_records import Experts
from agentgym_rl.storage import EpisodeReader

Index = npt.NDArray[np.int64]
"""The indices of some of the N tokens."""


class UpdatePosition(IntEnum):
    """The place of a token within its turn, relative to weight updates."""

    ONE_VERSION = 0
    """A token of a turn that one version sampled."""
    BEFORE_UPDATE = 1
    """A token by the first version of a turn that several versions sampled."""
    AFTER_UPDATE = 2
    """A token by a later version of such a turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The trained tokens, one entry each; all arrays are [N], `episode_ids` is not."""

    episode_ids: Sequence[str]
    episode: IntArray
    """The index of the episode in `episode_ids`."""
    row: IntArray
    """The index of the row within its episode."""
    position: IntArray
    """The position within the row."""
    version: IntArray
    admitted: IntArray
    recorded: FloatArray
    """The log-prob that the engine reported."""
    temperature: FloatArray
    place: IntArray

    @classmethod
    def collect(cls, reader: EpisodeReader, episode_ids: Sequence[str]) -> Tokens:
        """Read the trained tokens of these episodes."""
        parts: dict[str, list[Any]] = {name: [] for name in _ARRAYS}
        for episode, name in enumerate(episode_ids):
            for index, row in enumerate(reader.trajectory(name).rows):
                for key, array in _columns(episode, index, row).items():
                    parts[key].append(array)
        if not parts["position"]:
            parts = {name: [np.zeros(0, np.int32)] for name in _ARRAYS}
        joined: dict[str, Any] = {name: np.concatenate(arrays) for name, arrays in parts.items()}
        return cls(episode_ids, **joined)

    def __len__(self) -> int:
        return len(self.position)

    def of_version(self, version: int) -> Index:
        return np.flatnonzero(self.version == version)

    def rows(
        self,
        chosen: Index,
        reader: EpisodeReader,
        *,
        temperature: float | None = None,
        keeps_kv: bool = False,
    ) -> Iterator[Row]:
        """Yield the rows of the chosen tokens (ascending), with all other tokens masked out.

        Rows end with their last chosen token. `temperature` replaces the recorded ones. `keeps_kv`:
        after an update, the run's engines went on with the KV of older weights.
        """
        episode_now, trajectory = -1, None
        for part in self._by_row(chosen):
            episode = int(self.episode[part[0]])
            if trajectory is None or episode != episode_now:
                episode_now, trajectory = episode, reader.trajectory(self.episode_ids[episode])
            row = trajectory.rows[int(self.row[part[0]])]
            yield _restricted(row, self.position[part], temperature, keeps_kv)

    def _by_row(self, chosen: Index) -> list[Index]:
        rows = np.stack([self.episode[chosen], self.row[chosen]])
        changes = np.flatnonzero((rows[:, 1:] != rows[:, :-1]).any(0)) + 1
        return [part for part in np.split(chosen, changes) if len(part)]


_ARRAYS = [name for name in Tokens.__slots__ if name != "episode_ids"]


def _columns(episode: int, index: int, row: Row) -> dict[str, npt.NDArray[Any]]:
    position = np.flatnonzero(row.loss_mask).astype(np.int32)
    return {
        "episode": np.full(len(position), episode, np.int32),
        "row": np.full(len(position), index, np.int32),
        "position": position,
        "version": row.policy_versions[position],
        "admitted": row.admitted_versions[position],
        "recorded": row.behavior_logprobs[position],
        "temperature": row.temperatures[position],
        "place": _places(row.turn_ids[position], row.policy_versions[position]),
    }


def _places(turns: IntArray, versions: IntArray) -> IntArray:
    places = np.full(len(turns), UpdatePosition.ONE_VERSION, np.int32)
    for turn in np.unique(turns):
        own = turns == turn
        if len(np.unique(versions[own])) > 1:
            first = versions[own][0]
            later = versions[own] != first
            places[own] = np.where(later, UpdatePosition.AFTER_UPDATE, UpdatePosition.BEFORE_UPDATE)
    return places


def _experts_of(row: Row, version: int, *, keeps_kv: bool) -> Experts | None:
    """Return the row's experts, unknown where another version chose them, or this one on KV of
    older weights: a later turn computes its prompt anew, with experts of its own, and the row has
    those of the first one.

    A token's experts are of the version that sampled the next token after it.
    """
    if row.experts is None:
        return None
    sampled = np.flatnonzero(row.policy_versions != NOT_SAMPLED)
    following = np.searchsorted(sampled, np.arange(len(row)), side="right")
    known = following < len(sampled)
    own = np.zeros(len(row), np.bool_)
    after = sampled[following[known]]
    own[known] = row.policy_versions[after] == version
    if keeps_kv:
        admitted = row.admitted_versions[after]
        own[known] &= (admitted < 0) | (admitted == version)
    return Experts(np.where(own[:, None, None], row.experts.ids, np.int16(UNKNOWN_EXPERT)))


def _restricted(row: Row, positions: IntArray, temperature: float | None, keeps_kv: bool) -> Row:
    end = int(positions[-1]) + 1  # attention is causal: later tokens change nothing
    mask: BoolArray = np.zeros(end, np.bool_)
    mask[positions] = True
    head = replace(row.head(end), loss_mask=mask)
    version = int(row.policy_versions[positions[0]])
    head = replace(head, experts=_experts_of(head, version, keeps_kv=keeps_kv))
    if temperature is None:
        return head
    return replace(head, temperatures=np.full(end, temperature, np.float32))
