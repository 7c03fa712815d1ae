"""What is known of a checkpoint without reading its tensors (no torch here).

`checkpoints/step-N/` covers N trained batches: torch's distributed checkpoint plus
`manifest.json`. A folder of that name was written beside, fsynced and renamed; one that is not
whole all the same (a full or broken disk, a copy cut short) is told by its files' sizes.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from agentgym_rl.errors import TrainerError

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is of."""

    step: int
    """Training batches done; the next one is batch `step`."""
    version: int
    """Policy version of the weights: equal to `step`."""
    config_hash: str
    num_ranks: int
    """Ranks that wrote it; any number may read it."""
    libraries: dict[str, str]
    parameters: str = ""
    """A hash of the weights, or of the adapter (fingerprint.py)."""
    base: str = ""
    """CRC-32 of the weights that an adapter is of; a checkpoint of it has none itself."""
    lineage: str = ""
    """Which groups these weights were trained on, batch by batch: see `lineage_after`."""
    metrics: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    """Of the last batch."""
    files: dict[str, int] = field(default_factory=dict[str, int])
    """Sizes in bytes of the files beside the manifest."""


def lineage_after(lineage: str, step: int, group_ids: Iterable[str]) -> str:
    """`lineage` ("" before batch 0), and batch `step` of these groups: a chain of hashes, which
    two weights share only if they were trained on the same groups in the same batches."""
    said = json.dumps([lineage, step, sorted(set(group_ids))])
    return blake2b(said.encode(), digest_size=16).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint folder.

    Raises:
        TrainerError: there is none, or it is damaged, or a file it names is absent or cut short.
    """
    try:
        manifest = Manifest(**json.loads((path / MANIFEST).read_text()))
        for name, size in manifest.files.items():
            found = (path / name).stat().st_size
            if found != size:
                raise ValueError(f"{name} has {found} bytes, its manifest says {size}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TrainerError(f"{path} is no complete checkpoint: {error}") from error
    return manifest


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := _FOLDER.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


def newest_checkpoint(folder: Path, *, at_most: int | None = None) -> Path | None:
    """The newest complete checkpoint (of at most so many batches), or None; those that are not
    whole are passed over, with a warning."""
    for path in reversed(list_checkpoints(folder)):
        try:
            manifest = read_manifest(path)
        except TrainerError as error:
            log.warning("passing over a checkpoint: %s", error)
            continue
        if at_most is None or manifest.step <= at_most:
            return path
    return None
