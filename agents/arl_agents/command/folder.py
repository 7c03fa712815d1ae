"""A folder of agent programs for sandboxes: installed once, and shown to every episode.

    python -m arl_agents.command.folder ~/agents claude-code codex mini-swe-agent

    bin/           a launcher for each program, which finds all else beside itself
    node_modules/  programs of npm, and their Node.js
    python/        programs of PyPI, for the Python of the sandbox

The sandbox option `mounts` shows it at `inside.MOUNT`. No launcher changes PATH or PYTHONPATH: the
commands that an agent runs find the programs and packages of the task, and none of the agent's.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from agentgym_rl import ConfigError

from .inside import MOUNT
from .presets import PRESETS

NODE = "node@22"
"""The package with the Node.js of programs in JavaScript."""
_RUN = """\
import sys
here, made, name = sys.argv[1:4]
if made != "%d.%d" % sys.version_info[:2]:
    sys.exit(f"{name} was installed for Python {made}, and the sandbox has {sys.version}")
sys.path.insert(0, here)
sys.argv[:4] = [name]
from MODULE import NAME
sys.exit(NAME())
"""


def install(folder: Path, names: Sequence[str], *, python: str = sys.executable) -> list[Path]:
    """Install programs and write their launchers, which are returned; a program that is there
    already stays as it is.

    Args:
        names: Presets, "NAME" or "NAME@VERSION".
        python: An interpreter with pip, of the same minor version as the Python of sandboxes.

    Raises:
        ConfigError: a name is no preset's.
        subprocess.CalledProcessError: npm or pip failed.
        OSError: there is no npm, or the folder cannot be written.
    """
    packages: dict[str, list[str]] = {"npm": [], "pip": []}
    for name, _, version in (each.partition("@") for each in names):
        if name not in PRESETS:
            raise ConfigError(f"got {name!r}, expected one of {', '.join(PRESETS)}")
        tool, *_, package = PRESETS[name].install.split()
        if not _program(folder, tool, PRESETS[name].program).exists():
            by = "@" if tool == "npm" else "=="
            packages[tool].append(f"{package}{by}{version}" if version else package)
    folder.mkdir(parents=True, exist_ok=True)
    if found := packages["npm"]:
        node = [] if _program(folder, "npm", "node").exists() else [NODE]
        quiet = ["--no-fund", "--no-audit"]
        subprocess.run(["npm", "install", "--prefix", folder, *quiet, *found, *node], check=True)
    if found := packages["pip"]:
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
        subprocess.run([*pip, "--upgrade", "--target", folder / "python", *found], check=True)
    presets = [PRESETS[name.partition("@")[0]] for name in names]
    return [_launcher(folder, each.install.split()[0], each.program, python) for each in presets]


def _program(folder: Path, tool: str, name: str) -> Path:
    """Return the place of a program as npm or pip installs it."""
    return folder / ("node_modules/.bin" if tool == "npm" else "python/bin") / name


def _launcher(folder: Path, tool: str, name: str, python: str) -> Path:
    """Write the script that starts a program."""
    made = folder / "bin" / name
    made.parent.mkdir(exist_ok=True)
    program = _program(folder, tool, name)
    if tool == "pip":
        words = f"python3 -I -c {shlex.quote(_start(folder, name))} "
        words += f'"$here/python" {_version(python)} {name}'
    else:
        place = program.resolve().relative_to(folder.resolve())
        with program.open("rb") as file:
            is_binary = file.read(4) == b"\x7fELF"
        words = (
            f'"$here/{place}"' if is_binary else f'"$here/node_modules/.bin/node" "$here/{place}"'
        )
    made.write_text(f'#!/bin/sh\nhere="${{0%/*}}/.."\nexec {words} "$@"\n', encoding="utf-8")
    made.chmod(0o755)
    return made


def _start(folder: Path, name: str) -> str:
    """Return the Python code that runs an installed program."""
    for found in distributions(path=[str(folder / "python")]):
        for entry in found.entry_points.select(group="console_scripts", name=name):
            return _RUN.replace("MODULE", entry.module).replace("NAME", entry.attr)
    raise ConfigError(f"no package in {folder / 'python'} has a program {name!r}")


def _version(python: str) -> str:
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run(
        [python, "-c", ask], check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", help="presets, as in claude-code or codex@0.171.0")
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter of the sandbox's version"
    )
    given = parser.parse_args()
    try:
        made = install(given.folder, given.names, python=given.python)
    except (ConfigError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
    print("\n".join(map(str, made)))
    print(f"""show them to sandboxes: --sandbox.options.mounts='{{"{MOUNT}": "{given.folder}"}}'""")


if __name__ == "__main__":
    main()
