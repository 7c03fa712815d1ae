"""The installation at hand: the command that adds an extra to it, and packages that are too old.

The package is on no index, so pip cannot find it by its name. pip and uv record the source of an
installation (direct_url.json, https://peps.python.org/pep-0610/), which the command names again.
"""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

NAME = "agentgym-rl"
_CHECKOUT = Path(__file__).parents[2]


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra, such as "mcp": from the folder, file or
    repository that this installation came from, or else the extra's packages by name."""
    source = _source(_direct_url())
    if source is None and (_CHECKOUT / "pyproject.toml").exists():  # on PYTHONPATH
        source = f"-e {_CHECKOUT}"
    if source is None:
        return f"pip install {' '.join(map(repr, packages_of(extra)))}"
    if "://" in source:
        return f"pip install '{NAME}[{extra}] @ {source}'"
    option, _, folder = source.rpartition(" ") if source.startswith("-e ") else ("", "", source)
    return f"pip install {option}{' ' * bool(option)}'{folder}[{extra}]'"


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra, without their spaces and markers.

    Raises:
        KeyError: the installed package has no such extra.
    """
    mark = re.compile(rf"\bextra\s*==\s*['\"]{re.escape(extra)}['\"]")
    lines = [line for line in _requires() if mark.search(line)]
    if not lines:
        raise KeyError(extra)
    return [line.partition(";")[0].replace(" ", "") for line in lines]


def outdated() -> str:
    """Return one line about the installed packages that do not fit the bounds of this one; "" if
    all do."""
    from packaging.requirements import Requirement

    found: list[str] = []
    for line in _requires():
        needed = Requirement(line)
        try:
            version = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            continue
        for_all = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if for_all and not needed.specifier.contains(version, prereleases=True):
            bound = f"{needed.name}{needed.specifier}"
            found.append(f"{needed.name} {version} is installed, allowed is {bound!r}")
    if not found:
        return ""
    bounds = " ".join(line.rpartition(" ")[2] for line in found)
    return f"{'; '.join(found)}: pip install {bounds}"


def _requires() -> list[str]:
    try:
        return metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return []


def _direct_url() -> dict[str, Any]:
    """Return the record of the source of this installation; empty if it has none."""
    try:
        text = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {}
    return json.loads(text) if text else {}


def _source(record: dict[str, Any]) -> str | None:
    """Return "-e FOLDER", a folder or a URL for pip; None if it is unknown or gone."""
    url = str(record.get("url", ""))
    path = Path(unquote(urlsplit(url).path))
    if url.startswith("file:") and ("vcs_info" in record or not path.exists()):
        return None  # `NAME @ git+file:///…` is no valid requirement
    if "dir_info" in record:
        return f"-e {path}" if record["dir_info"].get("editable") else str(path)
    if "vcs_info" in record:
        vcs = record["vcs_info"]
        return f"{vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
    return url or None
