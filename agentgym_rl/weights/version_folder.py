"""The folder of a policy version: its beginning, its index, and complete versions."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from agentgym_rl.core import WeightsError, version_label
from agentgym_rl.runtime import replacing
from agentgym_rl.runtime.atomic_file import remove
from agentgym_rl.storage import seal, version_name
from agentgym_rl.storage.weights_folder import INDEX

from .files import StoredVersion, kinds_of, stored_versions, take
from .parts import PartsWriter, Plan, linked, part_of, plan_parts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The name of a version, and the sequence to which it belongs."""

    number: int
    incarnation: int = 0
    sequence: str = ""
    """The id of the sequence of versions that one trainer writes; empty: the version belongs to no
    sequence."""


def hidden(path: Path) -> Path:
    """Return the folder in which this process writes the version `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def oldest(folder: Path, *, keep: int) -> Path | None:
    """Return the version of `folder` to be overwritten, if there are `keep` already; never the only
    one, which engines may serve.

    Raises:
        OSError: the folder cannot be read.
    """
    found = stored_versions(folder)
    return found[0] if len(found) >= max(2, keep) else None


@contextmanager
def new_folder(path: Path, *, over: Path | None = None) -> Iterator[tuple[Path, Path | None]]:
    """Yield a new folder for the parts of the version `path`, which is renamed to `path` at the end
    of the context; after a failure it is removed.

    `over` is the folder of a version that is no longer needed. Unless it is being read, it is also
    yielded, under another name, to be overwritten.

    Raises:
        OSError: it cannot be made or renamed.
    """
    part = hidden(path)
    away = part.with_suffix(".over")
    try:
        with replacing(path, part=part):
            part.mkdir()
            yield part, away if over is not None and take(over, away) else None
    finally:
        remove(away)


def write_index(
    part: Path,
    plan: Plan,
    version: Version,
    *,
    digests: Mapping[str, str],
    changed: Iterable[str],
    previous: StoredVersion | None,
    config: Path | None = None,
) -> None:
    """Write the index of the complete parts in `part`, and a copy of the model's `config` file.

    Raises:
        OSError: it cannot be written.
    """
    follows = previous is not None and previous.sequence == version.sequence
    older = previous.since if previous is not None and follows else {}
    new = set(changed)
    index: dict[str, object] = {
        "metadata": {
            "format": "pt",
            "total_size": plan.total_size,
            "label": version_label(version.number, incarnation=version.incarnation),
            "version": version.number,
            "sequence": version.sequence,
        },
        "weight_map": plan.file_of,
        "digests": dict(digests),
        "since": {n: version.number if n in new else older.get(n, version.number) for n in digests},
    }
    metadata = index["metadata"]
    assert isinstance(metadata, dict)
    metadata["seal"] = seal(index)
    if config is not None:
        shutil.copyfile(config, part / config.name)
    (part / INDEX).write_text(json.dumps(index), encoding="utf-8")


def stored_before(path: Path | None) -> StoredVersion | None:
    """Return the previous version, or None if it is gone: then all of the next version is
    written."""
    if path is None:
        return None
    try:
        return StoredVersion(path)
    except WeightsError as error:
        _log.info("the next version is written whole: %s", error)
        return None


def write_version(
    folder: Path,
    version: int,
    tensors: Mapping[str, Tensor],
    *,
    incarnation: int = 0,
    sequence: str = "",
    previous: Path | None = None,
    over: Path | None = None,
) -> Path:
    """Write a policy version into `folder`, in one process; its folder appears complete or not at
    all.

    `previous` is the previous version, whose unchanged parts are linked. `over` is a version that
    is no longer needed: it is overwritten, unless it is being read. Nothing is fsynced: a version
    survives its writer, but not a power cut (checkpoints do).

    Raises:
        WeightsError: the version cannot be written (no space, no such folder, a tensor on a
            device without storage).
    """
    path = folder / version_name(version, incarnation=incarnation)
    named = Version(number=version, incarnation=incarnation, sequence=sequence)
    try:
        plan = plan_parts([{name: kind} for name, kind in kinds_of(tensors).items()])
        with new_folder(path, over=over) as (part, old):
            before = stored_before(previous)
            with closing(PartsWriter(part, plan.parts[0], previous=previous, over=old)) as writer:
                for name in tensors:
                    writer.write(name, tensors[name])
                writer.finish()
            write_index(
                *(part, plan, named),
                digests=writer.digests,
                changed=writer.changed,
                previous=before,
            )
    except (OSError, RuntimeError, ValueError, NotImplementedError) as error:
        raise WeightsError(f"cannot write policy version {version} to {path}: {error}") from error
    return path


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write one safetensors file, directly from the memory of the tensors, each of which is
    accessed once (`save_file` of safetensors copies all of them twice first, and makes the file
    private to its owner). Tied tensors are written twice.

    Raises:
        OSError: it cannot be written.
        ValueError: versions and exports do not support a tensor's dtype.
    """
    plan = plan_parts([kinds_of(tensors)], limit=sys.maxsize)
    parts = [replace(it, name=path.name) for it in plan.parts[0]] or [part_of(path.name, {})]
    with closing(PartsWriter(path.parent, parts)) as writer:
        for name in tensors:
            writer.write(name, tensors[name])
        writer.finish()


def copy_version(source: Path, target: Path, *, previous: tuple[Path, Path] | None = None) -> None:
    """Copy a version to the folder `target`, which appears complete or not at all; use hard links
    where possible. `previous` is the previous version, and its copy, whose unchanged parts are
    linked.

    Raises:
        OSError: it cannot be copied.
    """
    with replacing(target) as part:
        part.mkdir()
        for file in source.iterdir():
            twins = [file]
            if previous is not None and _same_file(previous[0] / file.name, file):
                twins.append(previous[1] / file.name)
            if not any(linked(twin, part / file.name) for twin in twins):
                shutil.copyfile(file, part / file.name)


def _same_file(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return False
