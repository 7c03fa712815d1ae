"""The agent's files: collected after its end, compared with the image's, put into a fresh sandbox.

The host reads the files itself. A list of folders, links and modes comes from a program in the
agent's sandbox: whatever it says, the agent could have made it so.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import posixpath
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from agentgym_rl import Sandbox, SandboxError
from agentgym_rl.gym.sandbox import ExecResult, Image, Status
from agentgym_rl.runtime.lru_dict import LruDict

from .hooks import Hooks

MAX_FILES, MAX_BYTES = 8_000, 64 << 20
"""The largest work folder that is taken over: its files, and the bytes of all together."""
CHUNK_FILES, CHUNK_BYTES = 200, 8 << 20
"""The files of one request: backends bound what they collect at once."""
MAX_PATCH_CHARS, MAX_PATCHED_BYTES = 100_000, 200_000
MAX_EQUAL_LINES = 200_000
"""The most pairs of equal lines in two versions of a file of which a difference is computed: the
time grows with it."""
CACHED_BYTES = 256 << 20
"""The bytes of the images' own files that are remembered."""
MODES = 0o777
"""The bits of a mode that are taken over: no setuid, no setgid, no sticky."""

_FOLDER, _FILE, _LINK = 4, 8, 10
_LIST = f"""
import json, os
found = []
top = "." if os.getcwd() != "/" else ""  # "/": the work folder is gone, or no folder
if top:
    found.append((top, {_FOLDER}, os.lstat(top).st_mode & {MODES}, ""))
for folder, folders, files in os.walk(top):
    for name in folders + files:
        path = os.path.join(folder, name)[2:]
        try:
            path.encode()
            state = os.lstat(path)
            kind = state.st_mode >> 12
            target = os.readlink(path) if kind == 10 else ""
            target.encode()
        except (OSError, UnicodeError):
            continue
        if kind in (4, 8, 10):
            found.append((path, kind, state.st_mode & {MODES}, target))
    if len(found) > {2 * MAX_FILES}:
        break
print(json.dumps(found))
"""
_CLEAR = """
import json, os, shutil, sys
plan = json.load(sys.stdin)
for path, mode in plan["closed"]:
    os.chmod(path, mode | 0o700)
for path in plan["removed"]:
    if os.path.islink(path) or not os.path.isdir(path):
        if os.path.lexists(path):
            os.remove(path)
    else:
        shutil.rmtree(path)
"""
_MAKE_ROOM = """
import json, os, shutil, sys
paths = json.load(sys.stdin)
folders, left = set(), {os.path.dirname(path) for path in paths}
while left - {"/"}:
    folders |= left - {"/"}
    left = {os.path.dirname(folder) for folder in left} - folders
for folder in sorted(folders):
    if os.path.isdir(folder):
        if not os.access(folder, os.W_OK | os.X_OK):
            os.chmod(folder, os.stat(folder).st_mode & 0o777 | 0o700)
    elif os.path.lexists(folder):
        os.remove(folder)
for path in paths:
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        for top, inner, _ in os.walk(path):
            for name in inner:
                if not os.path.islink(os.path.join(top, name)):
                    os.chmod(os.path.join(top, name), 0o700)
        shutil.rmtree(path)
"""
_MODULES = """
import pkgutil, sys
work = sys.argv[1]
places = [path for path in sys.path if path and not (path + "/").startswith(work + "/")]
print(*sorted(found.name for found in pkgutil.iter_modules(places)))
"""
_SHAPE = """
import json, os, sys
plan = json.load(sys.stdin)
for path in plan["gone"]:
    try:
        os.rmdir(path)
    except OSError:
        pass
for path in plan["folders"]:
    os.makedirs(path, exist_ok=True)
for path, target in plan["links"]:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    os.symlink(target, path)
for path, mode in plan["modes"]:
    if not os.path.islink(path) and os.path.exists(path):
        os.chmod(path, mode)
"""


class TooMuch(Exception):
    """The error of a work folder beyond the limits; the text says which."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder (kind 4), a regular file (8) or a link (10)."""

    kind: int
    mode: int
    target: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    """The contents of a work folder; paths are relative to it."""

    files: Mapping[str, bytes]
    unread: frozenset[str]
    """The regular files that could not be read: too large or too deep."""
    entries: Mapping[str, Entry]
    """The folders (the work folder as "."), files and links, by path; empty if they could not be
    listed."""
    modules: frozenset[str] | None = None
    """The modules that are installed beside an image's work folder; None: not looked for."""

    @property
    def names(self) -> frozenset[str]:
        return self.unread | self.files.keys()

    @property
    def size(self) -> int:
        return sum(map(len, self.files.values()))


@dataclass(slots=True)
class Changes:
    """The differences between the agent's work folder and the image's, without hooks."""

    written: dict[str, bytes] = field(default_factory=dict[str, bytes])
    removed: list[str] = field(default_factory=list[str])
    """The files, and links of the image, that are gone."""
    folders: list[str] = field(default_factory=list[str])
    closed: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """The image's folders to which their owner may not write, with their modes."""
    gone: list[str] = field(default_factory=list[str])
    """The image's folders that are gone, the deepest first."""
    links: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    modes: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    dropped: list[str] = field(default_factory=list[str])
    """The agent's files and links that are left out."""

    @property
    def empty(self) -> bool:
        return not (self.written or self.removed or self.shape)

    @property
    def shape(self) -> bool:
        return bool(self.folders or self.gone or self.links or self.modes)

    @property
    def size(self) -> int:
        return sum(map(len, self.written.values()))


async def read_tree(sandbox: Sandbox) -> Tree:
    """Return the contents of the work folder; no program may run that could change it.

    Raises:
        TooMuch: there are too many files, or too many bytes.
        SandboxError: the sandbox failed.
    """
    sizes = {path: size for path, size in (await sandbox.list_files()).items() if _is_text(path)}
    if len(sizes) > MAX_FILES:
        raise TooMuch(f"more than {MAX_FILES} files")
    if sum(sizes.values()) > MAX_BYTES:
        raise TooMuch(f"more than {MAX_BYTES >> 20} MB")
    first, *further = [*_chunks(sizes)] or [[]]
    listed = await sandbox.run_python(_LIST, collect=first)
    files = dict(listed.files)
    for chunk in further:
        files |= (await sandbox.exec(["true"], collect=chunk)).files
    files = {path: data for path, data in files.items() if path in sizes}
    entries = await asyncio.to_thread(listed_entries, listed)
    return Tree(files, frozenset(sizes.keys() - files.keys()), entries)


def _chunks(sizes: Mapping[str, int]) -> Iterable[list[str]]:
    chunk: list[str] = []
    held = 0
    for path in sorted(sizes):
        if chunk and (len(chunk) >= CHUNK_FILES or held + sizes[path] > CHUNK_BYTES):
            yield chunk
            chunk, held = [], 0
        chunk.append(path)
        held += sizes[path]
    if chunk:
        yield chunk


def listed_entries(result: ExecResult) -> dict[str, Entry]:
    if result.status is not Status.OK or result.truncated:
        return {}
    try:
        listed = json.loads(result.stdout)
        found = {path: Entry(kind, mode & MODES, target) for path, kind, mode, target in listed}
    except (ValueError, TypeError, RecursionError):
        return {}
    return {path: entry for path, entry in found.items() if _is_text(path) and _is_real(entry)}


def _is_real(entry: Entry) -> bool:
    is_target = _is_name(entry.target) and (entry.kind == _LINK) == bool(entry.target)
    return entry.kind in (_FOLDER, _FILE, _LINK) and is_target


def _is_text(path: Any) -> bool:
    """Return whether a path is one below the work folder."""
    if not _is_name(path):
        return False
    pure = PurePosixPath(path)
    return not pure.is_absolute() and ".." not in pure.parts


def _is_name(path: Any) -> bool:
    try:
        return isinstance(path, str) and b"\0" not in path.encode()
    except UnicodeEncodeError:
        return False


def changes_of(agent: Tree, image: Tree, hooks: Hooks, *, work_dir: str) -> Changes:
    """Return the changes that make the image's work folder the agent's, hooks left out."""
    found = Changes()
    for path, data in agent.files.items():
        if image.files.get(path) == data:
            continue
        if hooks.is_hook(path):
            found.dropped.append(path)
        else:
            found.written[path] = data
    found.dropped += agent.unread - image.unread
    gone = image.names - agent.names
    found.removed = sorted(path for path in gone if not hooks.is_hook(path))
    if agent.entries and image.entries:
        _compare_entries(found, agent, image, hooks, work_dir)
    blocked = {str(up) for path in found.written for up in PurePosixPath(path).parents}
    in_the_way = {
        path
        for path, entry in image.entries.items()
        if (entry.kind == _LINK and path in blocked | found.written.keys())
        or (entry.kind == _FOLDER and path in found.written)
    }
    found.removed = sorted({*found.removed, *in_the_way})
    _drop_below_files(found, image)
    found.closed = [
        (path, entry.mode)
        for path, entry in sorted(image.entries.items())
        if entry.kind == _FOLDER and entry.mode & 0o700 != 0o700
    ]
    return found


def _drop_below_files(found: Changes, image: Tree) -> None:
    """Leave out all that the agent has put below a name which is a file or link here: the image's
    hook stays even if the agent has made a folder of it."""
    links = {path for path, entry in image.entries.items() if entry.kind == _LINK}
    stay = (image.names | links).difference(found.removed)

    def has_room(path: str) -> bool:
        return stay.isdisjoint(map(str, PurePosixPath(path).parents))

    if not stay:
        return
    out = {path for path in found.written if not has_room(path)}
    for path in out:
        del found.written[path]
    out |= {path for path, _ in found.links if path in stay or not has_room(path)}
    found.links = [each for each in found.links if each[0] not in out]
    found.folders = [path for path in found.folders if path not in stay and has_room(path)]
    found.modes = [each for each in found.modes if has_room(each[0])]
    found.dropped += out


def _compare_entries(found: Changes, agent: Tree, image: Tree, hooks: Hooks, work_dir: str) -> None:
    for path, entry in sorted(agent.entries.items()):
        before = image.entries.get(path)
        if entry == before or path == "." or hooks.is_hook(path):
            continue
        if entry.kind == _LINK:
            if not _stays(path, entry.target, work_dir):
                found.dropped.append(path)
                continue
            if before is not None and before.kind != _FILE:
                found.removed.append(path)
            found.links.append((path, entry.target))
            continue
        if entry.kind == _FOLDER and (before is None or before.kind != _FOLDER):
            found.folders.append(path)
            if before is not None and before.kind == _LINK:
                found.removed.append(path)
        if path in agent.unread or (
            before is None and entry.kind == _FILE and path in found.dropped
        ):
            continue
        if before is None or (before.kind, before.mode) != (entry.kind, entry.mode):
            found.modes.append((path, entry.mode))
    lost = [path for path in image.entries if path not in agent.entries and not hooks.is_hook(path)]
    found.removed += [path for path in lost if image.entries[path].kind == _LINK]
    folders = [path for path in lost if image.entries[path].kind == _FOLDER]
    found.gone = sorted(folders, key=lambda path: -path.count("/"))
    found.modes.sort(key=_depth, reverse=True)  # a folder is closed after its files


def _stays(path: str, target: str, work_dir: str) -> bool:
    """Return whether a link points into the work folder."""
    real = posixpath.normpath(posixpath.join(work_dir, posixpath.dirname(path), target))
    return PurePosixPath(real).is_relative_to(work_dir)


async def apply(sandbox: Sandbox, changes: Changes) -> None:
    """Make the changes in a fresh sandbox of the image.

    Raises:
        SandboxError: the sandbox failed, or has no room for the files.
    """
    if changes.empty:
        return
    if changes.removed or changes.closed:
        await _run(sandbox, _CLEAR, {"closed": changes.closed, "removed": changes.removed})
    if changes.written:
        await sandbox.write_files(changes.written)
    if changes.shape or changes.closed:
        modes = dict(changes.closed) | dict(changes.modes)
        plan = {
            "gone": changes.gone,
            "folders": changes.folders,
            "links": changes.links,
            "modes": sorted(modes.items(), key=_depth, reverse=True),
        }
        await _run(sandbox, _SHAPE, plan)


async def put(sandbox: Sandbox, files: Mapping[str, bytes]) -> None:
    """Write files with absolute paths, in place of whatever the image has there.

    Raises:
        SandboxError: the sandbox failed, or has no room for the files.
    """
    if files:
        await _run(sandbox, _MAKE_ROOM, sorted(files))
        await sandbox.write_files(files)


def _depth(item: tuple[str, int]) -> int:
    """Return a number that is larger for folders further down, and 0 for the work folder."""
    return 0 if item[0] == "." else 1 + item[0].count("/")


async def _run(sandbox: Sandbox, code: str, given: Any) -> None:
    result = await sandbox.run_python(code, stdin=json.dumps(given).encode())
    if result.status is not Status.OK:
        raise SandboxError(
            f"{sandbox.id}: the agent's files could not be put in: {result.status.value}, "
            f"{result.stderr_text[-300:]}"
        )


async def _installed_modules(sandbox: Sandbox, work_dir: str) -> frozenset[str]:
    """Return the modules that Python finds outside of the work folder; none without a Python.

    Raises:
        SandboxError: the sandbox failed.
    """
    found = await sandbox.exec(["python3", "-c", _MODULES, work_dir])
    return frozenset(found.stdout_text.split() if found.ok else ())


def _size(tree: Tree) -> int:
    return tree.size + sum(map(sys.getsizeof, tree.modules or ()))


_TREES: LruDict[str, Tree] = LruDict(most_size=CACHED_BYTES, size_of=_size)
"""The work folders of images, each read once and remembered while there is room."""


def known_tree(image: Image, *, modules: bool) -> Tree | None:
    """Return the work folder of `image`, with the installed modules if they are asked for; None if
    they are not remembered."""
    tree = _TREES.use(image.key)
    return None if tree and modules and tree.modules is None else tree


async def image_tree(image: Image, sandbox: Sandbox, *, modules: bool) -> Tree:
    """Return the work folder of `image`, with the installed modules if they are asked for;
    `sandbox` is a fresh one of it.

    Raises:
        TooMuch: it is too large to be played.
        SandboxError: the sandbox failed.
    """
    tree = known_tree(image, modules=modules)
    if tree is None:
        found = await _installed_modules(sandbox, image.work_dir) if modules else None
        tree = _TREES[image.key] = replace(await read_tree(sandbox), modules=found)
    return tree


def patch_of(changes: Changes, base: Tree) -> str:
    """Return the changes of small text files as a unified diff, cut at MAX_PATCH_CHARS."""
    lines: list[str] = []
    for path in sorted({*changes.written, *changes.removed}):
        before, after = base.files.get(path, b""), changes.written.get(path, b"")
        old = before.decode("utf-8", "replace").splitlines(keepends=True)
        new = after.decode("utf-8", "replace").splitlines(keepends=True)
        too_large = len(before) + len(after) > MAX_PATCHED_BYTES
        if too_large or b"\0" in before + after or _num_equal(old, new) > MAX_EQUAL_LINES:
            lines.append(f"{path}: {len(before)} bytes before, {len(after)} after\n")
            continue
        lines += (
            line if line.endswith("\n") else f"{line}\n"
            for line in difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
        )
    return "".join(lines)[:MAX_PATCH_CHARS]


def _num_equal(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of pairs of equal lines."""
    counts = Counter(new)
    return sum(counts[line] for line in old)
