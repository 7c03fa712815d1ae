"""Print the lowest version of each dependency that pyproject.toml allows, as requirements for pip.

    python scripts/lowest_versions.py [EXTRA ...]      # lines of: NAME==VERSION

`make test-lowest` installs them in a virtual environment of its own. torch is left out: the
Makefile installs the version that all suites use.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("torch",)
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[\w,-]+\])?>=(?P<version>[\w.]+)")


class NoLowerBound(Exception):
    """The error of a dependency without a lower bound, which has no lowest version."""


def lowest(requirements: Sequence[str]) -> Iterator[str]:
    """Yield each requirement with its lower bound as its version.

    Raises:
        NoLowerBound: a requirement does not begin with `NAME>=VERSION`.
    """
    for line in requirements:
        found = _REQUIREMENT.match(line)
        if found is None:
            raise NoLowerBound(f"{line!r} of pyproject.toml begins with no NAME>=VERSION")
        if found["name"] not in LEFT_OUT:
            yield f"{found['name']}{found['extras'] or ''}=={found['version']}"


def main(extras: Sequence[str]) -> None:
    """Print the requirements of the package, and of these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = project["optional-dependencies"]
    if unknown := set(extras) - known.keys():
        raise SystemExit(f"no extra {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    for group in (project["dependencies"], *(known[name] for name in extras)):
        print(*lowest(group), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
