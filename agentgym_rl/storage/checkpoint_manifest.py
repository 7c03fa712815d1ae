"""The manifest of a checkpoint, which can be read without its tensors (no torch here).

`checkpoints/step-N/` covers N trained batches: torch's distributed checkpoint plus `manifest.json`.
The folder is written under a temporary name, fsynced and renamed. If it is still incomplete (a full
or broken disk, a partial copy), its files' sizes show it; their checksums show damage inside.
"""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from io import FileIO
from pathlib import Path

from agentgym_rl.core.errors import TrainerError

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
    """A hash of the groups that these weights were trained on, batch by batch: see
    `lineage_after`."""
    metrics: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    """The metrics of the last batch."""
    files: dict[str, int] = field(default_factory=dict[str, int])
    """The sizes, in bytes, of the files beside the manifest."""
    checksums: dict[str, str] = field(default_factory=dict[str, str])
    """The CRC-32 of the same files, in hex; empty in a checkpoint of an earlier release."""

    def sealed(self) -> str:
        """Return the text of `manifest.json`, with a checksum of its own."""
        head = asdict(self)
        return json.dumps(head | {_SEAL: _seal(head)}, indent=2)


def lineage_after(lineage: str, step: int, group_ids: Iterable[str]) -> str:
    """Return the hash of `lineage` ("" before batch 0) and batch `step` of these groups. Two sets
    of weights share such a chain of hashes only if trained on the same groups in the same
    batches."""
    said = json.dumps([lineage, step, sorted(set(group_ids))])
    return blake2b(said.encode(), digest_size=16).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint folder; of the listed files, only the sizes are compared.

    Raises:
        TrainerError: there is none, or it is damaged, or a file it names is absent or cut short.
    """
    try:
        head = json.loads((path / MANIFEST).read_text())
        if head.pop(_SEAL, "") not in ("", _seal(head)):
            raise ValueError(f"{MANIFEST} is not what was written")
        manifest = Manifest(**head)
        for name, size in manifest.files.items():
            found = (path / name).stat().st_size
            if found != size:
                raise ValueError(f"{name} has {found} bytes, its manifest says {size}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
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
    """Return the newest complete checkpoint (of at most `at_most` batches), or None if there are
    none. Incomplete ones are skipped with a warning. Every byte of the result has been read.

    Raises:
        TrainerError: there are some, and none is complete.
    """
    faults: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            if at_most is not None and read_manifest(path).step > at_most:
                continue
            check_whole(path)
        except TrainerError as error:
            log.warning("passing over a checkpoint: %s", error)
            faults.append(str(error))
        else:
            return path
    if faults:
        raise TrainerError(f"no checkpoint in {folder} is whole ({'; '.join(faults)})")
    return None
