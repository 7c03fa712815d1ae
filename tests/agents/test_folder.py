"""The folder of agent programs for sandboxes, with stand-ins for what npm and pip install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from arl_agents.command.folder import install

from agentgym_rl.core import ConfigError

ENTRY = """[console_scripts]
mini = standin.run:app.main
mini-extra = standin.run:other
"""
MODULE = """import os, sys
class app:
    @staticmethod
    def main():
        print("mini", sys.argv[1:], os.environ.get("PYTHONPATH"), os.path.basename(os.getcwd()))
        return 3
"""


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which everything is installed, but for the launchers."""
    made = tmp_path / "agents with space"
    bin = made / "node_modules" / ".bin"
    write(bin / "node", '#!/bin/sh\necho node $(basename "$1") $2\n')
    script = write(
        made / "node_modules" / "@openai" / "codex" / "codex.js", "#!/usr/bin/env node\n"
    )
    (bin / "codex").symlink_to(script)
    binary = write(made / "node_modules" / "claude-code" / "claude.exe", "")
    binary.write_bytes(Path("/bin/echo").read_bytes())
    (bin / "claude").symlink_to("../claude-code/claude.exe")
    mini = made / "python" / "mini"
    write(mini / "bin" / "mini", "#!/nowhere/python\n")
    write(mini / "standin" / "run.py", MODULE)
    write(mini / "standin-1.dist-info" / "entry_points.txt", ENTRY)
    write(mini / "standin-1.dist-info" / "METADATA", "Name: standin\nVersion: 1\n")
    return made


def run(*argv: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.run(
        argv, cwd=cwd, env={"PATH": path, **env}, capture_output=True, text=True, check=False
    )


def test_programs_that_are_there_get_launchers(folder):
    names = ["claude-code", "codex@1.2", "mini-swe-agent"]
    assert [path.name for path in install(folder, names)] == ["claude", "codex", "mini"]


def test_launchers_find_everything_beside_themselves(folder, tmp_path):
    install(folder, ["claude-code", "codex", "mini-swe-agent"])
    moved = folder.rename(tmp_path / "moved here")
    bin = moved / "bin"
    assert run(bin / "claude", "a b", "c", cwd=tmp_path).stdout == "a b c\n"
    assert run(bin / "codex", "exec", cwd=tmp_path).stdout == "node codex.js exec\n"
    done = run("mini", "--task=a b", cwd=tmp_path, PATH=f"{bin}:{Path(sys.executable).parent}:/bin")
    assert (done.stdout, done.returncode) == (f"mini ['--task=a b'] None {tmp_path.name}\n", 3)


def test_files_of_the_task_stand_in_for_no_module(folder, tmp_path):
    install(folder, ["mini-swe-agent"])
    write(tmp_path / "standin" / "run.py", "raise SystemExit('of the task')")
    write(tmp_path / "random.py", "raise SystemExit('of the task')")
    assert run(folder / "bin" / "mini", cwd=tmp_path).stdout.startswith("mini []")


def test_another_python_is_named(folder, tmp_path):
    install(folder, ["mini-swe-agent"])
    launcher = folder / "bin" / "mini"
    made = "%d.%d" % sys.version_info[:2]  # noqa: UP031
    launcher.write_text(launcher.read_text().replace(f" {made} mini ", " 3.1 mini "))
    done = run(launcher, cwd=tmp_path)
    assert done.returncode == 1
    assert "mini was installed for Python 3.1, and the sandbox has 3." in done.stderr


def test_unknown_programs_are_refused_before_anything_is_installed(tmp_path):
    with pytest.raises(ConfigError, match="got 'vim', expected one of claude-code, codex"):
        install(tmp_path / "agents", ["codex", "vim"])
    assert not (tmp_path / "agents").exists()


def test_a_package_without_the_program_is_named(folder):
    (folder / "python" / "mini" / "standin-1.dist-info" / "entry_points.txt").write_text("")
    with pytest.raises(ConfigError, match=r"no package in .* has a program 'mini'"):
        install(folder, ["mini-swe-agent"])


def test_the_command_says_how_to_show_the_folder(folder, tmp_path):
    command = [sys.executable, "-m", "arl_agents.command.folder", str(folder)]
    done = run(*command, "codex", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        str(folder / "bin" / "codex"),
        f"""show them to sandboxes: --sandbox.options.mounts='{{"/opt/agents" = "{folder}"}}'""",
    ]
    done = run(*command, "vim", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: got 'vim'")
