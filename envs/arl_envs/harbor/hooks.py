"""The files of a work folder that programs execute although no command names them (*hooks*).

An agent that adds or changes such a file changes how the tests run, not what they test. So the
verification keeps the image's version, or none. There are two sorts:

    certain    start-up files, compiled modules, programs on a search path, modules in the place of
               installed ones. A task whose answer is such a file names it in task.toml, as in
               `[metadata] arl_keep = ["pyproject.toml"]`.
    doubtful   files that could be the answer of a task as well: hidden files, settings of tools,
               build files of the image. They are taken over if the task's solution needs them.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from .hook_names import (
    BIN_FOLDERS,
    BUILD_FILES,
    CONFIG_VARIABLES,
    DOUBTFUL_FOLDERS,
    DOUBTFUL_NAMES,
    FOLDERS,
    HARMLESS_PACKAGE_KEYS,
    INTERPRETER,
    LIBRARY_VARIABLES,
    MAKEFILES,
    NAMES,
    OPEN_DOT_NAMES,
    RUNNERS,
    STARTUP_MODULES,
)
from .links import is_in
from .mentions import Mentions

_MODULES = sys.stdlib_module_names.union(RUNNERS)
_OFTEN_OWN = {"tests", "docs", "examples", "scripts", "benchmarks"}
"""The folders that some packages install in addition to themselves, by mistake."""
_SUFFIXES = (".py", ".so", ".pyd")
_OF_A_PREFIX = ("lib", "lib64", "libexec", "include", "pyvenv.cfg", "conda-meta")


@dataclass(frozen=True, slots=True)
class Why:
    """The reason that a file of the agent is left out."""

    text: str
    is_doubtful: bool = False
    """Whether the file is taken over if the task's solution needs it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The libraries of an image outside of its work folder."""

    modules: frozenset[str] = frozenset()
    """The modules of Python that are installed."""
    namespaces: frozenset[str] = frozenset()
    """The modules that are folders without a file of their own; another part of them may be
    anywhere."""
    wanted: frozenset[str] = frozenset()
    """The modules that are not installed, and that installed ones import if they are there."""
    libraries: frozenset[str] = frozenset()
    """The files of Perl and Ruby, relative to the folders in which these look for them."""
    places: frozenset[str] = frozenset()
    """The folders of the work folder in which Python looks for modules, relative to it."""
    bins: frozenset[str] = frozenset()
    """The folders of PATH in the work folder, links resolved, relative to it."""

    @property
    def size(self) -> int:
        parts = (self.modules, self.namespaces, self.wanted, self.libraries)
        return sum(sys.getsizeof(each) for part in parts for each in part)


@dataclass(frozen=True, slots=True)
class Search:
    """The paths in the work folder that variables of the tests name, relative to it."""

    bins: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    """The folders in which the loader of programs looks for libraries."""
    libraries: frozenset[str] = frozenset()
    """The folders in which other interpreters look for modules."""
    files: frozenset[str] = frozenset()
    """The files that an interpreter or tool reads when it starts."""

    @classmethod
    def of(cls, env: Mapping[str, str], work_dir: str) -> Search:
        """Return what the variables `env` name; relative paths begin in the work folder."""

        def named(*names: str, split: str = "[:]") -> frozenset[str]:
            parts = [part for name in names for part in re.split(split, env.get(name, "\0"))]
            found = {relative_to(work_dir, part) for part in parts if "\0" not in part}
            return frozenset(path for path in found if path is not None)

        config = [name for name in env if _like(CONFIG_VARIABLES, name)]
        return cls(
            bins=named("PATH") - {"."},
            modules=named("PYTHONPATH"),
            shared=named("LD_LIBRARY_PATH"),
            libraries=named(*LIBRARY_VARIABLES) - {"."},
            files=named(*config, split=r"[\s:,;=]") - {"."},
        )


class Hooks:
    """The judgement of paths of a work folder (relative to it).

    Args:
        image: The image's files in the work folder.
        links: The image's links in it, with their targets.
        work_dir: The absolute path of the work folder.
        keep: The patterns of paths that are no hooks of this task.
        needed: The paths that the task's solution needs although they are doubtful.
        declared: The artifacts in the work folder: doubtful files below them are taken over.
        search: The paths that the tests' variables name.
        mentions: The names in the tests' texts.
        around: The libraries of the image.
        all_doubtful: Whether to take over every doubtful file.
    """

    def __init__(
        self,
        image: Collection[str],
        *,
        links: Mapping[str, str] | None = None,
        work_dir: str = "/app",
        keep: Sequence[str] = (),
        needed: Collection[str] = (),
        declared: Collection[str] = (),
        search: Search | None = None,
        mentions: Mentions | None = None,
        around: Surroundings | None = None,
        all_doubtful: bool = False,
    ) -> None:
        self._around = around or Surroundings()
        self._search = search or Search()
        self._mentions = mentions or Mentions()
        self._modules = _MODULES.union(self._around.modules) - (_OFTEN_OWN - _MODULES)
        self._namespaces = self._around.namespaces - _OFTEN_OWN
        self._bins = self._search.bins | self._around.bins
        self._image = frozenset(image)
        self._links = dict(links or {})
        self._work_dir = work_dir
        self._folders = {
            str(folder)
            for path in [*self._image, *self._links]
            for folder in PurePosixPath(path).parents
        }
        self._lower = {path.lower() for path in self._image}
        self._keep = tuple(keep)
        self._needed, self._declared = frozenset(needed), frozenset(declared)
        self._all_doubtful = all_doubtful
        self._prefixes = frozenset(self._found_prefixes())
        self._outward = {path for path in self._links if self._leads_out(path)}

    def is_hook(self, path: str) -> bool:
        """Return whether the agent's version of a file is to be left out."""
        return self.why(path) is not None

    def why(self, path: str, data: bytes = b"") -> Why | None:
        """Return the reason that the agent's version of a file or link is left out; None: it is
        taken over."""
        pure = PurePosixPath(path)
        if any(fnmatchcase(path, each) or fnmatchcase(pure.name, each) for each in self._keep):
            return None
        if text := self._certain(pure):
            return Why(text)
        if self.takes(path):
            return None
        text = self._doubtful(pure, data)
        return Why(text, is_doubtful=True) if text else None

    def takes(self, path: str) -> bool:
        """Return whether this path is taken over if it is doubtful."""
        return (
            self._all_doubtful
            or path in self._needed
            or any(PurePosixPath(path).is_relative_to(each) for each in self._declared)
        )

    # ------------------------------------------------------------------ certain
    def _certain(self, path: PurePosixPath) -> str:
        parts, text = path.parts, str(path)
        around = "/" + "/".join(parts).lower() + "/"
        if ".git" in parts[-1:] or (text == "HEAD" and text not in self._image):
            return "it names another repository for git"
        if _like(NAMES, path.name.lower()) or any(f"/{folder}/" in around for folder in FOLDERS):
            return "programs load it by themselves"
        if any(part.split(".")[0] in STARTUP_MODULES for part in parts):
            return "Python imports it when it starts"
        if any(is_in(text, folder) for folder in (*self._bins, *self._prefixes)):
            return "programs are looked for there"
        if ".so" in path.name and any(is_in(text, each) for each in self._search.shared):
            return "libraries of programs are looked for there"
        return self._shadowed(path)

    def _shadowed(self, path: PurePosixPath) -> str:
        """Return the reason if a new file would be imported in the place of an installed module."""
        if not path.name.endswith(_SUFFIXES) or str(path) in self._image:
            return ""
        for place, module, inner in self._as_modules(path):
            regular = inner == () or (len(inner) == 1 and inner[0].split(".")[0] == "__init__")
            if regular and module in self._modules and not self._has_init(place, module, inner):
                return f"it would be imported instead of the module {module}"
            if module in self._namespaces and not self._has_module(place, module):
                return f"it would be a part of the installed module {module}"
        return ""

    def _as_modules(self, path: PurePosixPath) -> Iterable[tuple[str, str, tuple[str, ...]]]:
        """Yield the folder in which a module is looked for, its name, and the path in it."""
        for folder in path.parents:
            if self._on_path(str(folder)):
                top, *inner = path.relative_to(folder).parts
                yield str(folder), top if inner else top.split(".")[0], tuple(inner)

    def _has_init(self, place: str, module: str, inner: tuple[str, ...]) -> bool:
        """Return whether the image itself has this module, in the same form."""
        top = posixpath.normpath(posixpath.join(place, module))
        form = f"{top}/__init__" if inner else top
        return any(f"{form}{suffix}" in self._image for suffix in _SUFFIXES)

    def _has_module(self, place: str, module: str) -> bool:
        top = posixpath.normpath(posixpath.join(place, module))
        return f"{top}.py" in self._image or any(
            each.startswith(f"{top}/") and each.endswith(".py") for each in self._image
        )

    def _on_path(self, folder: str) -> bool:
        """Return whether tests of the image's author may have Python look for modules there: it is
        the work folder, a folder of the image that is no package, or named for it."""
        named = self._around.places | self._search.modules | self._mentions.places
        if folder == "." or folder in named:
            return True
        return folder in self._folders and f"{folder}/__init__.py" not in self._image

    # ------------------------------------------------------------------ doubtful
    def _doubtful(self, path: PurePosixPath, data: bytes) -> str:
        name, text = path.name.lower(), str(path)
        if any(part.startswith("-") or not part.isprintable() for part in path.parts):
            return "its name can be read as an option, or as several names"
        hidden = [part for part in path.parts if part.startswith(".") and part != "."]
        if hidden and not any(_like(OPEN_DOT_NAMES, each) for each in hidden):
            return "tools read hidden files by themselves"
        if text in self._search.files:
            return "a variable of the tests names it"
        if text in self._mentions.sourced:
            return "the tests execute it in their own shell"
        if text not in self._folders and any(each in self._mentions.placed for each in _ends(path)):
            return "the tests may put a file or a folder there"
        if text in self._mentions.included:
            return "the tests' own file of this name would not be found"
        if text in self._mentions.targets and text not in self._image:
            return "it has the name of something that the tests build"
        if _like(DOUBTFUL_NAMES, name):
            return "" if self._is_plain_package(path, data) else "tools read it by themselves"
        if any(f"/{folder}/" in f"/{text.lower()}" for folder in DOUBTFUL_FOLDERS):
            return "modules and settings are looked for there"
        if path.parent.name.lower() in BIN_FOLDERS and INTERPRETER.fullmatch(name):
            return "it has the name of an interpreter"
        if any(up in self._outward for up in (text, *map(str, path.parents))):
            return "the image has a link out of the work folder there"
        if any(is_in(text, each) for each in self._search.libraries) and text not in self._image:
            return "an interpreter looks for modules there"
        return self._of_the_build(path) or self._wanted(path)

    def _is_plain_package(self, path: PurePosixPath, data: bytes) -> bool:
        """Return whether a file is a new package.json that configures no tool."""
        if path.name != "package.json" or not data or str(path) in self._image:
            return False
        try:
            found: Any = json.loads(data)
        except (ValueError, RecursionError):
            return False
        return isinstance(found, dict) and HARMLESS_PACKAGE_KEYS.issuperset(found)

    def _of_the_build(self, path: PurePosixPath) -> str:
        """Return the reason if the image has a file that builds or tests, in this form or
        another."""
        name, text = path.name.lower(), str(path)
        if text in self._image:
            known = _like(BUILD_FILES, name)
            return "the image's own file builds or tests the project" if known else ""
        if text.lower() in self._lower:
            return "the image has it under another spelling"
        is_makefile = not MAKEFILES.isdisjoint(re.split("[.,]", name))
        others = (str(path.parent / other) for other in MAKEFILES if is_makefile)
        if any(posixpath.normpath(other).lower() in self._lower for other in others):
            return "the image has it under another name"
        return ""

    def _wanted(self, path: PurePosixPath) -> str:
        if str(path) in self._image:
            return ""
        if path.suffix in (".pm", ".pmc", ".rb", ".pl") and any(
            re.sub(r"\.pmc$", ".pm", tail) in self._around.libraries for tail in _ends(path)
        ):
            return "it has the place of an installed module"
        if path.name.endswith(_SUFFIXES):
            for place, module, _ in self._as_modules(path):
                if module in self._around.wanted | self._mentions.modules and not self._has_module(
                    place, module
                ):
                    return f"installed modules, or the tests, import {module} if it is there"
            return self._shadowed_where_tests_are(path) or self._makes_a_package(path)
        return ""

    def _makes_a_package(self, path: PurePosixPath) -> str:
        """Return the reason if a new __init__.py would be imported with tests that are copied into
        its folder, or below: pytest imports the packages around a test."""
        if path.name.partition(".")[0] != "__init__":
            return ""
        folder, filled = str(path.parent), self._mentions.filled
        inner = [folder, *(each for each in self._folders if is_in(each, folder))]
        if filled and (folder == "." or any(PurePosixPath(each).name in filled for each in inner)):
            return "it would be imported with tests that are copied there"
        return ""

    def _shadowed_where_tests_are(self, path: PurePosixPath) -> str:
        """Return the reason if a new file would be imported in the place of an installed module by
        tests that are copied into its folder."""
        for folder in path.parents:
            if folder.name in self._mentions.filled | self._mentions.entered:
                module = path.relative_to(folder).parts[0].partition(".")[0]
                if module in self._modules and not self._has_module(str(folder), module):
                    return f"it would be imported instead of the module {module}"
        return ""

    # ------------------------------------------------------------------ the image
    def _leads_out(self, path: str) -> bool:
        """Return whether the image has a link at `path`, to a place out of the work folder."""
        target = posixpath.join(posixpath.dirname(path), self._links.get(path, ""))
        return path in self._links and relative_to(self._work_dir, target) is None

    def _found_prefixes(self) -> Iterable[str]:
        """Yield the folders of the image in which an interpreter is installed."""
        for path in [*self._image, *self._links]:
            pure = PurePosixPath(path)
            folder = pure.parent
            if folder.name.lower() not in BIN_FOLDERS:
                continue
            if INTERPRETER.fullmatch(pure.name.lower()) or self._leads_out(path):
                yield str(folder)
                prefix = folder.parent
                yield from (posixpath.normpath(str(prefix / each)) for each in _OF_A_PREFIX[:3])
                if str(prefix) != "." and any(
                    f"{prefix}/{mark}" in self._image for mark in _OF_A_PREFIX[4:]
                ):
                    yield str(prefix)


def relative_to(work_dir: str, path: str) -> str | None:
    """Return the path relative to the work folder, in which relative ones begin; None: it is
    outside."""
    full = PurePosixPath(posixpath.normpath(posixpath.join(work_dir, path)))
    return str(full.relative_to(work_dir)) if full.is_relative_to(work_dir) else None


def _ends(path: PurePosixPath) -> Iterable[str]:
    return ("/".join(path.parts[at:]) for at in range(len(path.parts)))


def path_without(env: Mapping[str, str], work_dir: str) -> str:
    """Return PATH without the work folder itself, in which the agent could place a program of any
    name."""
    parts = env.get("PATH", "").split(":")
    return ":".join(each for each in parts if each and relative_to(work_dir, each) != ".")


def _like(patterns: tuple[str, ...], name: str) -> bool:
    return _compiled(patterns).match(name) is not None


@cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))
