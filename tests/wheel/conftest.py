"""A built wheel in a virtual environment outside of the clone, and commands in empty folders."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 600

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def python(tmp_path_factory, wheel) -> Path:
    """The interpreter of a new environment: the wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    # Before the dependencies: pip would find this clone's package beside them, and keep that.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=LIMIT_S)
    (site,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is not searched for .pth files, so an editable clone stays out.
    beneath = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "zz_beneath.pth").write_text("\n".join(beneath) + "\n")
    return python


@pytest.fixture
def run(python, tmp_path) -> Run:
    """Run a program of the environment in an empty folder; it has to succeed unless `code`."""
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
    path = f"{python.parent}:{os.environ['PATH']}"

    def run(name: str, *argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [python.parent / name, *argv],
            cwd=tmp_path,
            env={**kept, "PATH": path, "COLUMNS": "80"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done

    return run
