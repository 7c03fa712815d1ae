"""The manifests of checkpoints, and the choice of the checkpoints to keep (no torch here).

`checkpoints/step-N/` covers N trained batches: torch's distributed checkpoint plus `manifest.json`.
The folder is written under a temporary name, fsynced and renamed. If it is nevertheless incomplete
(a full or broken disk, a partial copy), the sizes of its files show it; their checksums show damage
inside.

The newest checkpoints are kept, and the best by a metric. A metric of the last batch is in the
manifest. A metric of an evaluation (`eval/…`) is recorded later, in the run's evaluations
(evaluations.py); until then the checkpoint is kept.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Self

import msgspec

from agentgym_rl.config import LaterVersion, TrainerConfig, check_format
from agentgym_rl.core import TrainerError, is_dict, parse_json

from .evaluations import EvalRecord, EvalRecords

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_SEAL = "checksum"
"""The key of the manifest's own checksum in its file."""
_READERS = 4
_BLOCK_BYTES = 1 << 20
_FOLDER = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a checkpoint."""

    step: int
    """The number of trained batches; the next one is batch `step`."""
    version: int
    """The policy version of the weights: equal to `step`."""
    config_hash: str
    num_ranks: int
    """The number of ranks that wrote it; any number may read it."""
    libraries: dict[str, str]
    parameters: str = ""
    """A hash of the weights, or of the adapter (fingerprint.py)."""
    base: str = ""
    """The CRC-32 of an adapter's base weights, which its checkpoint does not contain."""
    lineage: str = ""
    """A hash of the groups on which these weights were trained, batch by batch: see
    `lineage_after`."""
    metrics: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    """The metrics of the last batch."""
    files: dict[str, int] = field(default_factory=dict[str, int])
    """The sizes, in bytes, of the files of the checkpoint other than the manifest."""
    checksums: dict[str, str] = field(default_factory=dict[str, str])
    """The CRC-32 of the same files, in hex; empty in a checkpoint of an earlier release."""
    format: int = 0
    """The format of the run's files (`config.FORMAT`); earlier versions wrote none."""

    def sealed(self) -> str:
        """Return the text of `manifest.json`, with a checksum of its own."""
        head = asdict(self)
        return json.dumps(head | {_SEAL: _seal(head)}, indent=2)


def lineage_after(lineage: str, step: int, group_ids: Iterable[str]) -> str:
    """Return the hash of `lineage` ("" before batch 0) and batch `step` of these groups. Two sets
    of weights share such a chain of hashes only if trained on the same groups in the same
    batches."""
    entry = json.dumps([lineage, step, sorted(set(group_ids))])
    return blake2b(entry.encode(), digest_size=16).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint folder; of the listed files, only the sizes are compared.

    Raises:
        TrainerError: there is no manifest, it is damaged, or a file that it names is absent or cut
            short.
        LaterVersion: a later version of the package wrote it.
    """
    try:
        head = parse_json((path / MANIFEST).read_text())
        if not is_dict(head):
            raise ValueError(f"{MANIFEST} is no JSON object")
        check_format(head.get("format", 0), path / MANIFEST)
        if head.pop(_SEAL, "") not in ("", _seal(head)):
            raise ValueError(f"{MANIFEST} is not what was written")
        manifest = msgspec.convert(head, Manifest)
        for name, size in manifest.files.items():
            found = (path / name).stat().st_size
            if found != size:
                raise ValueError(f"{name} has {found} bytes, its manifest says {size}")
    except LaterVersion:
        raise
    except (OSError, ValueError) as error:
        raise TrainerError(f"{path} is no complete checkpoint: {error}") from error
    return manifest


def check_whole(path: Path) -> Manifest:
    """Return the manifest of a checkpoint folder, after every file has been read and compared.

    Raises:
        TrainerError: see `read_manifest`; or a file is damaged inside.
    """
    manifest = read_manifest(path)
    try:
        found = checksums(path / name for name in manifest.checksums)
    except OSError as error:
        raise TrainerError(f"{path} cannot be read: {error}") from error
    for name, was in manifest.checksums.items():
        if found[name] != was:
            raise TrainerError(f"{path} is damaged: {name} is not what was written")
    return manifest


def checksums(files: Iterable[Path]) -> dict[str, str]:
    """Return the CRC-32 of each file by name, in hex, at some gigabytes a second. Checksums detect
    damage, not an adversary. Several files are read at once, without the interpreter's lock."""
    paths = list(files)
    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1), "checksums") as pool:
        found = pool.map(_crc, paths)
        return {path.name: f"{crc:08x}" for path, crc in zip(paths, found, strict=True)}


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb", buffering=0) as file:
        for block in _blocks(file):
            crc = zlib.crc32(block, crc)
    return crc


def _blocks(file: FileIO) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    while size := file.readinto(buffer):
        yield buffer[:size]


def _seal(head: Mapping[str, object]) -> str:
    return f"{zlib.crc32(json.dumps(head, sort_keys=True).encode()):08x}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := _FOLDER.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


def newest_checkpoint(folder: Path, *, at_most: int | None = None) -> Path | None:
    """Return the newest complete checkpoint (of at most `at_most` batches), or None if there are no
    checkpoints. Incomplete ones are skipped with a warning. Every byte of the result has been read
    and checked.

    Raises:
        TrainerError: there are checkpoints, and none is complete.
    """
    faults: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            if at_most is not None and read_manifest(path).step > at_most:
                continue
            check_whole(path)
        except TrainerError as error:
            log.warning("skipping a checkpoint: %s", error)
            faults.append(str(error))
        else:
            return path
    if faults:
        raise TrainerError(f"no checkpoint in {folder} is whole ({'; '.join(faults)})")
    return None


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule by which checkpoints are kept."""

    keep: int
    """The number of newest checkpoints to keep."""
    keep_best: int = 0
    """The number of other checkpoints to keep, the best by `best_metric`."""
    best_metric: str = "reward/mean"
    """The metric to maximize; with a - before its name, to minimize."""

    @classmethod
    def of(cls, trainer: TrainerConfig) -> Self:
        """Return the retention that a run's configuration sets."""
        return cls(trainer.keep_checkpoints, trainer.keep_best, trainer.best_metric)

    def score(self, manifest: Manifest, record: EvalRecord | None) -> float | None:
        """Return a checkpoint's score, the higher the better; None if it has no such metric."""
        sign, name = 1.0, self.best_metric
        if name.startswith("-"):
            sign, name = -1.0, name[1:]
        found = manifest.metrics.get(name)
        if record is not None and record.parameters in ("", manifest.parameters):
            found = record.metrics.get(name, found)
        return None if found is None else sign * found

    def to_remove(
        self, manifests: Mapping[Path, Manifest], records: Mapping[int, EvalRecord]
    ) -> list[Path]:
        """Return checkpoints that are not among the newest or the best, nor waiting for evaluation.

        A checkpoint that has no such metric is never the best.
        """
        newest = sorted(manifests, key=lambda path: manifests[path].step)[-self.keep :]
        kept = {*newest, *self.ranked(manifests, records)[: self.keep_best]}
        if self.keep_best and self.best_metric.removeprefix("-").startswith("eval/"):
            waiting = {v for v, record in records.items() if record.status == "waiting"}
            kept |= {path for path, manifest in manifests.items() if manifest.step in waiting}
        return [path for path in manifests if path not in kept]

    def ranked(
        self, manifests: Mapping[Path, Manifest], records: Mapping[int, EvalRecord]
    ) -> list[Path]:
        """Return the checkpoints that have a score, the best first; among equal ones the newest
        first."""
        scores: dict[Path, tuple[float, int]] = {}
        for path, manifest in manifests.items():
            score = self.score(manifest, records.get(manifest.version))
            if score is not None:
                scores[path] = (score, manifest.step)
        return sorted(scores, key=scores.__getitem__, reverse=True)


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint of a run."""

    checkpoint: Path
    version: int
    metric: str
    value: float


def prune(folder: Path, retention: Retention) -> None:
    """Remove the checkpoints of a run that need not be kept, and incomplete ones."""
    manifests = _manifests(folder)
    for path in list_checkpoints(folder):
        if path not in manifests:
            shutil.rmtree(path)
    for path in retention.to_remove(manifests, EvalRecords(folder.parent).read()):
        shutil.rmtree(path)


def best_checkpoint(folder: Path, retention: Retention) -> Best | None:
    """Return the best existing checkpoint; None if none has such a metric."""
    manifests = _manifests(folder)
    records = EvalRecords(folder.parent).read()
    for path in retention.ranked(manifests, records):
        manifest = manifests[path]
        score = retention.score(manifest, records.get(manifest.version))
        assert score is not None
        value = -score if retention.best_metric.startswith("-") else score
        return Best(path, manifest.version, retention.best_metric, value)
    return None


def _manifests(folder: Path) -> dict[Path, Manifest]:
    """Return the manifests of the complete checkpoints in `folder`."""
    found: dict[Path, Manifest] = {}
    for path in list_checkpoints(folder):
        with contextlib.suppress(TrainerError):
            found[path] = read_manifest(path)
    return found
