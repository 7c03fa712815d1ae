"""The parts of visible folders that are hidden from programs: installed packages, and the folders
that this project is imported from. Both may hold the answers to the tasks of programs."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

NAMES = ("site-packages", "dist-packages")
"""The names of folders of installed packages, for any Python."""
PLACES = ("src", "envs", "pkgs", "local/src")
"""The folders below a prefix for checkouts (`pip install -e git+...`), and of conda and pyenv."""
OURS = ("agentgym_rl", "arl_envs", "arl_agents", "arl_sandboxes", "arl_isolation")
DEPTH = 6
"""The depth of the search below a tree (/usr/local/NAME/lib/python3.12/site-packages: 5)."""
_NEVER = ("bin", "sbin", "lib", "lib64", "share", "local", "local/bin", "local/sbin", "local/lib")
"""The folders below a prefix that are not hidden even if `sys.path` begins with one of them."""
_NOT_ENTERED = frozenset(
    ("doc", "firmware", "fonts", "icons", "include", "locale", "man", "modules", "zoneinfo")
)
"""The large folders that contain no Python installation."""


def hidden_paths(trees: Sequence[str], interpreter: Sequence[str]) -> list[str]:
    """Return the folders and files of `trees` to be hidden from programs, as real paths.

    Args:
        trees: The folders that programs see.
        interpreter: The files and folders that the programs' interpreter needs.
    """
    tops = [os.path.realpath(tree) for tree in trees]
    found = [path for top in tops for path in _package_folders(top)]
    found += [f"{top}/{place}" for top in tops for place in PLACES]
    found += [*_imported_from(), *_own_folders()]
    needed = [f"{top}/{name}" for top in tops for name in _NEVER]
    needed += [*tops, *map(os.path.realpath, interpreter)]
    real = {os.path.realpath(path) for path in found if os.path.exists(path)}
    return _outermost(
        path
        for path in real
        if any(below(path, top) for top in tops) and not any(below(one, path) for one in needed)
    )


def below(path: str, folder: str) -> bool:
    """Return True if the path is in the folder, or the folder itself."""
    return Path(path).is_relative_to(folder)


def _package_folders(top: str) -> Iterator[str]:
    """Yield package folders; links are not followed, as their targets are in a tree, or unseen."""
    todo = [(top, 1)]
    while todo:
        folder, depth = todo.pop()
        try:
            with os.scandir(folder) as entries:
                inner = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # closed to this user, and so to programs
        for entry in inner:
            if entry.name in NAMES:
                yield entry.path
            elif depth < DEPTH and entry.name not in _NOT_ENTERED:
                todo.append((entry.path, depth + 1))


def _imported_from() -> Iterator[str]:
    """Yield the entries of this process's `sys.path`, except the standard library."""
    library = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    archive = "python{}{}.zip".format(*sys.version_info)
    for entry in sys.path:
        path = os.path.realpath(entry)
        of_library = any(below(path, folder) for folder in library)
        if entry and not of_library and os.path.basename(path) != archive:
            yield path


def _own_folders() -> Iterator[str]:
    """Yield the folders of our packages, wherever they are installed."""
    for name in OURS:
        spec = importlib.util.find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield os.path.realpath(folder)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that are in none of the others."""
    found: list[str] = []
    for path in sorted(paths, key=lambda path: Path(path).parts):
        if not (found and below(path, found[-1])):
            found.append(path)
    return found
