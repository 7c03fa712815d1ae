"""The places where clients are installed: packages of npm, and interpreters with frameworks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_AGENTS = Path(f"{sys.prefix.removesuffix('-agents')}-agents")
MODULES = Path(os.environ.get("ARL_CLI_MODULES") or _AGENTS / "cli" / "node_modules")
"""The `node_modules` with the packages of tests/agents/cli, as `make test-agents` installs them."""
APART = Path(os.environ.get("ARL_CLIENTS") or _ROOT / "build" / "clients")
"""The folder of the environments of frameworks that need one of their own."""


class NotInstalled(LookupError):
    """The error of a missing client; its message has the way to install it."""


def npm_version(package: str) -> str:
    """Return the version of a package of `MODULES`.

    Raises:
        NotInstalled: it is missing.
    """
    found = MODULES / package / "package.json"
    if not found.exists():
        raise NotInstalled(f"npm install --prefix {MODULES.parent} {package}")
    return json.loads(found.read_text(encoding="utf-8"))["version"]


def npm_path() -> str:
    """Return PATH with the programs of `MODULES` first: a newer Node.js is among them."""
    return os.pathsep.join([str(MODULES / ".bin"), os.environ.get("PATH", os.defpath)])


def python_of(distribution: str, *requirements: str) -> tuple[str, str]:
    """Return an interpreter that has a distribution, and its version.

    Raises:
        NotInstalled: neither the environment of `make test-agents` nor one in `APART` has it.
    """
    name = distribution.replace("-", "_")
    for folder in (APART / distribution, _AGENTS):
        for found in folder.glob(f"lib/python*/site-packages/{name}-*.dist-info"):
            version = found.name.removesuffix(".dist-info").rpartition("-")[2]
            return str(folder / "bin" / "python"), version
    where = APART / distribution
    wanted = " ".join(f"'{each}'" for each in requirements or (distribution,))
    raise NotInstalled(f"python3 -m venv {where} && {where}/bin/pip install {wanted}")
