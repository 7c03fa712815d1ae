"""The names in the texts of a task's tests, which show what the tests may use in the work folder.

The tests are read and not run, so names that they compute are not found.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

_WORDS = re.compile(r"[\w.-]+(?:/[\w.-]+)*")
_NAMES = re.compile(r"[\w.-]+")
_BUILDS = re.compile(
    r"(?:^|[;&|({!\"'`=]|\b(?:then|if|do|else|while|exec|time|env)\s)\s*(?:\w+=\S+\s+)*"
    r"(?:g?make|ninja|rake|scons|tup|redo|bmake)\b(.*)"
)
_COPIES = re.compile(
    r"\b(?:cp|mv|install|rsync|mkdir|ln|tee|copy\w*|move|makedirs|symlink\w*|rename|replace|tar|"
    r"unzip|dd|write_text|write_bytes|save\w*|dump|to_csv|to_json|to_parquet)\b|"
    r"\bopen\(.*[\"'][rb]*[waxr]\+?[bt]*[\"']|\s-o\b|--out"
)
_ASSIGNS = re.compile(r"^\s*(?:export\s+|local\s+|const\s+|let\s+|var\s+)?\w+\s*=")
_PLACES = re.compile(
    r"\b(?:cp|mv|ln|rsync|install|copytree|copy\w*|move|rename|replace|symlink\w*)\b([^;&|\n]*)"
)
_ENTERS = re.compile(
    r"(?:\b(?:cd|pushd|chdir)\b[\s(\"']*|\bcwd\s*=\s*[\"']|--chdir[\s=])([\w./-]+)"
)
_LOOKS = re.compile(r"\breadlink|\s-[Lh]\s|\bis_?(?:sym)?link|\blstat\b|-type l")
_PATHS = re.compile(r"[\w./-]+")
_REDIRECTS = re.compile(r">\s*([^\s;&|<>()]+)")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_SOURCED = re.compile(r"(?:\bsource|(?:^|[;&|(]|\bthen|\bdo)\s*\.)\s+[\"']?([\w./-]+)")


@dataclass(frozen=True, slots=True)
class Mentions:
    """The names in the texts of the tests, which show what the tests may use in the work folder."""

    words: frozenset[str] = frozenset()
    """All names, without the folders before them; each also without its suffix."""
    written: frozenset[str] = frozenset()
    """The names of the files and folders that tests may copy or write to."""
    links: frozenset[str] = frozenset()
    """The names of the files that tests may expect to be links."""
    placed: frozenset[str] = frozenset()
    """The paths to which tests may copy or link. A file there may stay, and a folder may get the
    copy inside."""
    places: frozenset[str] = frozenset()
    """The folders that tests may add to Python's search path."""
    filled: frozenset[str] = frozenset()
    """The names of the folders that tests may copy programs to."""
    entered: frozenset[str] = frozenset()
    """The names of the folders in which tests may start programs."""
    targets: frozenset[str] = frozenset()
    """The arguments of tools such as make, for which a file of such a name is done."""
    sourced: frozenset[str] = frozenset()
    """The files that tests execute in their own shell."""
    modules: frozenset[str] = frozenset()
    """The tests' own modules if the work folder may come before them in Python's search path."""

    included: frozenset[str] = frozenset()
    """The tests' own files for which PHP and Lua look in the current folder first."""

    @classmethod
    def of(cls, tests: Mapping[str, bytes], work_dir: str) -> Mentions:
        """Return the names in the tests' files."""
        texts = [
            data.decode("utf-8", "replace").replace(f"{work_dir}/", "") for data in tests.values()
        ]
        lines = [_COMMENT.sub("", line) for text in texts for line in text.splitlines()]
        shown = "\n".join(lines)
        copying = " ".join(line for line in lines if _COPIES.search(line))
        assigned = " ".join(line for line in lines if _ASSIGNS.search(line)) if copying else ""
        names = frozenset(_NAMES.findall(shown))
        paths = [line for line in lines if "PYTHONPATH" in line or "sys.path" in line]
        is_behind = any(re.search(r"path\.(append|extend)|:/tests", line) for line in paths)
        stems = {PurePosixPath(path).parts[0].partition(".")[0] for path in tests if ".py" in path}
        places = {posixpath.normpath(word) for line in paths for word in _WORDS.findall(line)}
        return cls(
            words=names | {name.partition(".")[0] for name in names},
            written=frozenset(
                _NAMES.findall(f"{copying} {assigned} {' '.join(_REDIRECTS.findall(shown))}")
            ),
            links=frozenset(
                name for line in lines if _LOOKS.search(line) for name in _NAMES.findall(line)
            ),
            placed=frozenset(_placed(lines)),
            places=frozenset(places),
            filled=frozenset(_NAMES.findall(copying)),
            entered=frozenset(PurePosixPath(path).name for path in _ENTERS.findall(shown)),
            targets=frozenset(
                word
                for line in lines
                for arguments in _BUILDS.findall(line)
                for word in _NAMES.findall(arguments)
            ),
            sourced=frozenset(
                posixpath.normpath(path) for line in lines for path in _SOURCED.findall(line)
            ),
            modules=frozenset(stems) if is_behind else frozenset(),
            included=frozenset(path for path in tests if path.endswith((".php", ".inc", ".lua"))),
        )


def _placed(lines: Iterable[str]) -> Iterable[str]:
    """Yield the last paths of commands that copy or link, those outside of the work folder left
    out."""
    for line in lines:
        for arguments in _PLACES.findall(line):
            paths = [posixpath.normpath(each) for each in _PATHS.findall(arguments)]
            if paths and paths[-1] == "/tests":
                yield "tests"
            elif paths and not paths[-1].startswith(("/", "-")):
                yield paths[-1]
