"""The contents of a work folder, read by the host; those of an image are remembered.

The list of folders, links and modes comes from a program in the sandbox, which the agent can
deceive. This is harmless: the agent could have made any such folders, links and modes itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from agentgym_rl import Sandbox
from agentgym_rl.gym import ExecResult, Image
from agentgym_rl.gym.sandbox_records import Status
from agentgym_rl.runtime import LruDict

from .hooks import Surroundings
from .links import FILE, FOLDER, LINK, Entry

MAX_FILES, MAX_BYTES = 8_000, 64 << 20
"""The largest work folder that is taken over: its files, and the bytes of all together."""
CHUNK_FILES, CHUNK_BYTES = 200, 8 << 20
"""The files of one request: backends bound what they collect at once."""
CACHED_BYTES = 256 << 20
"""The bytes of the images' own files that are remembered."""
MAX_SOURCE_BYTES = 64 << 20
"""The most bytes of an image's installed modules that are searched for what they import."""
MODES = 0o777
"""The bits of a mode that are taken over: no setuid, no setgid, no sticky."""

_LIST = f"""
import json, os
found = []
top = "." if os.getcwd() != "/" else ""  # "/": the work folder is gone, or no folder
if top:
    found.append((top, {FOLDER}, os.lstat(top).st_mode & {MODES}, ""))
for folder, folders, files in os.walk(top):
    for name in folders + files:
        path = os.path.join(folder, name)[2:]
        try:
            path.encode()
            state = os.lstat(path)
            kind = state.st_mode >> 12
            target = os.readlink(path) if kind == {LINK} else ""
            target.encode()
        except (OSError, UnicodeError):
            continue
        if kind in ({FOLDER}, {FILE}, {LINK}):
            found.append((path, kind, state.st_mode & {MODES}, target))
    if len(found) > {2 * MAX_FILES}:
        break
print(json.dumps(found))
"""


_PROBE = r"""
import json, os, pkgutil, re, shutil, subprocess, sys
work = os.path.realpath(sys.argv[1])
most = int(sys.argv[2])

def inner(path):
    real = os.path.realpath(path)
    return os.path.relpath(real, work) if (real + "/").startswith(work + "/") else ""

def files(place, *suffixes):
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(set(folders) - {"test", "tests", "__pycache__", "idlelib", "lib2to3"})
        for name in sorted(names):
            if name.endswith(suffixes):
                yield os.path.join(folder, name)

outside = [path for path in sys.path if path and os.path.isdir(path) and not inner(path)]
modules = {found.name for found in pkgutil.iter_modules(outside)}
namespaces = set()
for place in outside:
    for name in set(os.listdir(place)) - modules:
        top = os.path.join(place, name)
        if name.isidentifier() and os.path.isdir(top) and any(
            sub.endswith(".py") or os.path.exists(os.path.join(top, sub, "__init__.py"))
            for sub in os.listdir(top)
        ):
            namespaces.add(name)
block = (
    rb"(?:\btry|suppress\([^\n]*\)):[^\n]*\n"
    rb"((?:[ \t]+(?:import|from)[ \t][^\n]*\n|[ \t]*#.*\n)+)"
)
line = rb"(?m)^[ \t]+(?:from[ \t]+(\w+)|import[ \t]+([\w., ]+))"
wanted, read = set(), 0
for place in outside:
    for path in files(place, ".py"):
        try:
            with open(path, "rb") as source:
                text = source.read(most - read)
        except OSError:
            continue
        read += len(text)
        for found in re.findall(block, text):
            for name, names in re.findall(line, found):
                wanted.update(re.findall(r"\w+", part.decode())[0] for part in
                              ([name] if name else names.split(b",")) if part.strip())
known = modules | namespaces | {"__main__", *sys.builtin_module_names}
libraries = set()
for program, code, suffixes in (
    ("perl", "print join qq(\n), @INC", (".pm", ".pl")), ("ruby", "puts $LOAD_PATH", (".rb",))
):
    if shutil.which(program):
        said = subprocess.run([program, "-e", code], capture_output=True, timeout=20, text=True)
        for place in said.stdout.split("\n"):
            if place and not inner(place):
                libraries.update(os.path.relpath(path, place) for path in files(place, *suffixes))
print(json.dumps({
    "modules": sorted(modules), "namespaces": sorted(namespaces),
    "wanted": sorted(wanted - known), "libraries": sorted(libraries),
    "places": sorted({inner(path) for path in sys.path if path} - {""}),
    "bins": sorted({inner(path) for path in os.environ["PATH"].split(":") if path} - {"", "."}),
}))
"""


class TooMuch(Exception):
    """The error of a work folder beyond the limits; the text names the limit."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The contents of a work folder; paths are relative to it."""

    files: Mapping[str, bytes]
    unread: frozenset[str]
    """The regular files that could not be read: too large or too deep."""
    entries: Mapping[str, Entry]
    """The folders (the work folder as "."), files and links, by path; empty if they could not be
    listed."""
    around: Surroundings | None = None
    """The libraries beside an image's work folder; None: not looked for."""

    @property
    def names(self) -> frozenset[str]:
        return self.unread | self.files.keys()

    @property
    def size(self) -> int:
        return sum(map(len, self.files.values()))


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
    is_target = _is_name(entry.target) and (entry.kind == LINK) == bool(entry.target)
    return entry.kind in (FOLDER, FILE, LINK) and is_target


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


async def _surroundings(sandbox: Sandbox, work_dir: str) -> Surroundings:
    """Return the libraries outside of the work folder; none without a Python.

    Raises:
        SandboxError: the sandbox failed.
    """
    found = await sandbox.exec(["python3", "-c", _PROBE, work_dir, str(MAX_SOURCE_BYTES)])
    if not found.ok or found.truncated:
        return Surroundings()
    libraries: dict[str, list[str]] = json.loads(found.stdout)
    return Surroundings(**{name: frozenset(each) for name, each in libraries.items()})


def _size(tree: Tree) -> int:
    return tree.size + (tree.around.size if tree.around else 0)


_TREES: LruDict[str, Tree] = LruDict(most_size=CACHED_BYTES, size_of=_size)
"""The work folders of images, each read once and remembered while there is room."""


def known_tree(image: Image, *, around: bool) -> Tree | None:
    """Return the work folder of `image`, with its surroundings if `around`; None if it is not
    remembered."""
    tree = _TREES.use(image.key)
    return None if tree and around and tree.around is None else tree


async def image_tree(image: Image, sandbox: Sandbox, *, around: bool) -> Tree:
    """Return the work folder of `image`, with its surroundings if `around`; `sandbox` is a new
    sandbox of the image.

    Raises:
        TooMuch: it is too large to be played.
        SandboxError: the sandbox failed.
    """
    tree = known_tree(image, around=around)
    if tree is None:
        found = await _surroundings(sandbox, image.work_dir) if around else None
        tree = _TREES[image.key] = replace(await read_tree(sandbox), around=found)
    return tree
