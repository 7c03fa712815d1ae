"""The links of a work folder, followed as the kernel would follow them beneath it.

Every component of a path is looked up in the folder's list of entries, link by link, `..` after a
link included. A path that leaves the work folder ends there, even if it would come back: the
folders above are those of another sandbox when the tests run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

MAX_HOPS = 40
"""The most links of one path, as in Linux (path_resolution(7))."""
MAX_STEPS = 1000
"""The most names of one path, those of its links included."""
FOLDER, FILE, LINK = 4, 8, 10


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder (kind 4), a regular file (8) or a link (10)."""

    kind: int
    mode: int
    target: str = ""


def real_path(path: str, entries: Mapping[str, Entry], work_dir: str) -> str | None:
    """Return the path to which `path` leads, without links ("." is the work folder); None if
    nothing is there, or the path leaves the work folder.

    Args:
        path: Relative to the work folder.
        entries: All that is in the work folder, by path.
        work_dir: Its absolute path, below which absolute links may lead.
    """
    left = deque(path.split("/"))
    found: list[str] = []
    hops = steps = 0
    while left:
        part = left.popleft()
        if (steps := steps + 1) > MAX_STEPS:
            return None
        if part in ("", "."):
            continue
        if part == "..":
            if not found:
                return None
            found.pop()
            continue
        entry = entries.get("/".join([*found, part]))
        if entry is None:
            return None
        if entry.kind == LINK:
            hops += 1
            target = _beneath(entry.target, work_dir)
            if target is None or hops > MAX_HOPS:
                return None
            if entry.target.startswith("/"):
                found = []
            left.extendleft(reversed(target.split("/")))
            continue
        if left and entry.kind == FILE:
            return None  # "file/..", "file/" and "file/." are errors for the kernel, too
        found.append(part)
    return "/".join(found) or "."


def _beneath(target: str, work_dir: str) -> str | None:
    """Return the target of a link without the work folder before it; None: it is elsewhere."""
    if not target.startswith("/"):
        return target
    parts = [part for part in target.split("/") if part not in ("", ".")]
    above = [part for part in work_dir.split("/") if part]
    if parts[: len(above)] != above:
        return None
    tail = "/" if target.endswith(("/", "/.")) else ""
    return "/".join(parts[len(above) :]) + tail


def below(folder: str, entries: Mapping[str, Entry]) -> Iterator[tuple[str, Entry]]:
    """Yield the paths relative to `folder` of all that is below it, with their entries."""
    for path, entry in entries.items():
        if path != "." and path != folder and is_in(path, folder):
            yield str(PurePosixPath(path).relative_to(folder)), entry


def is_in(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or below it; both are without links."""
    return folder == "." or path == folder or path.startswith(f"{folder}/")
