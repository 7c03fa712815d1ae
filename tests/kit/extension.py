"""A package that exists for a test, installed as pip would: modules and a dist-info folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent


def install(
    folder: Path, modules: Mapping[str, str], points: Mapping[str, Mapping[str, str]]
) -> Path:
    """Write a package into `folder`, which then belongs on sys.path (or PYTHONPATH).

    Args:
        folder: The place of the modules and of their dist-info; made if it is not there.
        modules: The source of each module, by name.
        points: The entry points of each group, without "agentgym_rl.": name to "module:attr".
    """
    info = folder / f"{folder.name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1.0\n")
    lines = []
    for group, members in points.items():
        lines += [f"[agentgym_rl.{group}]", *(f"{name} = {at}" for name, at in members.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(dedent(source))
    return folder
