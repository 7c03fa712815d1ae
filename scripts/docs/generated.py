"""The pages that are generated from the code: commands, configuration, and docstrings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from configuration import configuration

# A page each, of modules or single classes.
MODULES: Mapping[str, tuple[str, ...]] = {
    "environments": (
        "agentgym_rl.gym.env",
        "agentgym_rl.gym.sync_env.SyncEnv",
        "agentgym_rl.gym.tool_env.env",
        "agentgym_rl.gym.tool_env.schema",
        "agentgym_rl.core.task",
        "agentgym_rl.gym.specs",
        "agentgym_rl.gym.registry",
        "agentgym_rl.gym.wrappers.wrapper",
        "arl_check.run",
        "agentgym_rl.gym.services",
        "agentgym_rl.gym.verifier",
        "arl_verifier.pool",
    ),
    "agents": ("agentgym_rl.gym.agent", "arl_agents.bridge", "arl_serve"),
    "sandboxes": ("agentgym_rl.gym.sandbox",),
    "records": (
        "agentgym_rl.core.trajectory",
        "agentgym_rl.core.batch",
        "agentgym_rl.storage.episode_reader",
        "agentgym_rl.core.engine",
    ),
    "algorithms": (
        "agentgym_rl.algo.losses",
        "agentgym_rl.algo.advantages",
        "agentgym_rl.algo.losses",
        "agentgym_rl.algo.aggregation",
        "agentgym_rl.algo.advantages",
        "arl_objectives.kl",
        "agentgym_rl.algo.advantages",
    ),
    "errors": ("agentgym_rl.core.errors",),
}
_COLUMNS = "80"


def write_reference(to: Path) -> int:
    """Write the pages of reference/; return their number."""
    folder = to / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {name: _api(name, modules) for name, modules in MODULES.items()}
    pages |= {"commands": _commands(), "configuration": configuration()}
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text)
    return len(pages)


def _api(name: str, modules: tuple[str, ...]) -> str:
    lines = [f"# {name.capitalize()} in Python", ""]
    for module in modules:
        lines += [f"::: {module}", ""]
    return "\n".join(lines)


def _commands() -> str:
    lines = [
        "# Commands",
        "",
        "What `--help` says. With `--json` a command prints one JSON object on stdout; all else "
        "goes to stderr. Exit codes: 0, 1 (failed), 2 (wrong use), 130 (interrupted).",
        "",
        "## arl",
        "```text",
        _help(),
        "```",
    ]
    for name in _names():
        lines += ["", f"## arl {name}", "```text", _help(name), "```"]
    return "\n".join(lines) + "\n"


def _names() -> list[str]:
    from agentgym_rl.cli.registry import all_commands

    return [row.name for row in all_commands()]


def _help(*command: str) -> str:
    """Return the output of `arl COMMAND --help` in 80 columns."""
    argv = [sys.executable, "-m", "agentgym_rl", *command, "--help"]
    env = os.environ | {"COLUMNS": _COLUMNS}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()
