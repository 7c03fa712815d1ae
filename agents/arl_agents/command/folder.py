"""A folder of agent programs for sandboxes: installed once, and shown to every episode.

    python -m arl_agents.command.folder ~/agents claude-code codex mini-swe-agent

    bin/           a launcher for each program, which finds the rest relative to itself
    node_modules/  programs of npm, and their Node.js python/        programs of PyPI, each with its
    own packages, for the Python of the sandbox

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
from MODULE import FIRST
sys.exit(ATTRIBUTE())
"""


def install(folder: Path, names: Sequence[str], *, python: str = sys.executable) -> list[Path]:
    """Install programs and write their launchers, which are returned; a program that is installed
    already stays as it is.

    Args:
        names: Presets, "NAME" or "NAME@VERSION".
        python: An interpreter with pip, of the same minor version as the Python of sandboxes.

    Raises:
        ConfigError: a name is no preset's.
        subprocess.CalledProcessError: npm or pip failed.
        OSError: there is no npm, or the folder cannot be written.
    """
    if unknown := [name for name in names if name.partition("@")[0] not in PRESETS]:
        raise ConfigError(f"got {unknown[0]!r}, expected one of {', '.join(PRESETS)}")
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    for name, _, version in (each.partition("@") for each in names):
        program = PRESETS[name].program
        tool, *_, package = PRESETS[name].install.split()
        if not _program(folder, tool, program).exists():
            wanted = f"{package}{'@' if tool == 'npm' else '=='}{version}" if version else package
            subprocess.run(_command(folder, tool, program, wanted, python), check=True)
        made.append(_launcher(folder, tool, program, python))
    return made


def _command(folder: Path, tool: str, program: str, package: str, python: str) -> list[str]:
    """Return the command that installs a package."""
    if tool == "npm":
        node = [] if _program(folder, "npm", "node").exists() else [NODE]
        quiet = ["--no-fund", "--no-audit"]
        return ["npm", "install", "--prefix", str(folder), *quiet, package, *node]
    quiet = ["--quiet", "--disable-pip-version-check"]
    target = str(folder / "python" / program)
    return [python, "-m", "pip", "install", *quiet, "--upgrade", "--target", target, package]


def _program(folder: Path, tool: str, name: str) -> Path:
    """Return the place of a program as npm or pip installs it."""
    return folder / ("node_modules/.bin" if tool == "npm" else f"python/{name}/bin") / name


def _launcher(folder: Path, tool: str, name: str, python: str) -> Path:
    """Write the script that starts a program."""
    made = folder / "bin" / name
    made.parent.mkdir(exist_ok=True)
    program = _program(folder, tool, name)
    if tool == "pip":
        words = f"python3 -I -c {shlex.quote(_start(folder / 'python' / name, name))} "
        words += f'"$here/python/{name}" {_version(python)} {name}'
    else:
        place = program.resolve().relative_to(folder.resolve())
        words = f'"$here/{place}"'
        with program.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                words = f'"$here/node_modules/.bin/node" {words}'
    made.write_text(f'#!/bin/sh\nhere="${{0%/*}}/.."\nexec {words} "$@"\n', encoding="utf-8")
    made.chmod(0o755)
    return made


def _start(folder: Path, name: str) -> str:
    """Return the Python code that runs a program of the packages in the folder."""
    for found in distributions(path=[str(folder)]):
        for entry in found.entry_points.select(group="console_scripts", name=name):
            first, code = entry.attr.partition(".")[0], _RUN.replace("MODULE", entry.module)
            return code.replace("FIRST", first).replace("ATTRIBUTE", entry.attr)
    raise ConfigError(f"no package in {folder} has a program {name!r}")


def _version(python: str) -> str:
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True)
    return done.stdout.strip()


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
    shown = f'{{"{MOUNT}" = "{given.folder}"}}'
    print(f"show them to sandboxes: --sandbox.options.mounts='{shown}'")


if __name__ == "__main__":
    main()
