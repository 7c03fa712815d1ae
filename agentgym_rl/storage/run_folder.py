"""The folder of a run: its choice, its claim by one process, and its configuration file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import sqlite3
import time
from collections.abc import Collection, Generator
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from agentgym_rl.config import Config, dump_record
from agentgym_rl.core import ConfigError, TaskSource
from agentgym_rl.runtime import log as logs

from .evaluations import FOLDER as EVALUATIONS
from .evaluations import LINES as EVALUATION_LINES

MARK = "config.toml"
EPISODES = "episodes.db"
TASKS = "tasks.json"
MODEL = "model.json"
"""The file with the digests of a run's initial model."""
WARMED_UP = "init/warmup.json"
"""The file that records the warm-up by which the model of `--init sft` was trained."""
WARM_UP_STEPS = "init/steps.jsonl"
"""The file with a line for each step of that warm-up."""
RUN = "run.json"
"""The file that records what a folder holds, and how its last process ended (run_end.py)."""
EVALUATED = "evaluated.json"
"""The file with the model of an evaluation, in the folder of `arl eval --out`."""
EVALUATION_RESULT = "result.json"
"""The file with the result of an evaluation, in the same folder."""
LOCK = "lock"
"""The lock file, on which the kernel keeps the lock; it contains the last holder's process and
machine."""
SERVE_INFO = "serve.json"
"""The file with the endpoint and the admin key of `arl serve`, which open sessions."""


@cache
def build() -> str:
    """Return the version of this distribution with a digest of the code of its packages that are
    installed, as runs record it."""
    digest = blake2b(digest_size=4)
    for name in logs.OURS:  # the objective's code is in extensions, too
        spec = find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            for file in sorted(Path(folder).rglob("*.py")):
                digest.update(file.read_bytes())
    return f"{version('agentgym-rl')}+{digest.hexdigest()}"


def create_run_dir(config: Config, *, kind: str = "") -> tuple[Path, Path]:
    """Create the run's folder; return it and its configuration file.

    Without `config.run` the name is runs/<kind>-<utc time>, by default with `kind_of` environment
    and agent; made unique. A folder is claimed by creating `config.toml` in it, so that two runs
    never share one.

    Raises:
        ConfigError: `config.run` holds a run already, or cannot be written.
    """
    for folder in _candidates(config.run, kind or kind_of(config.env.id, config.agent.id)):
        if _has_run(folder):
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / MARK).open("x", encoding="utf-8") as file:
                file.write(dump_record(config, folder))
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(
                f"cannot create the run folder {folder}: {error}; choose another with --run"
            ) from error
        return folder, folder / MARK
    raise ConfigError(_taken(config.run))


def kind_of(env_id: str, agent_id: str) -> str:
    """Return the kind of a run in which this agent plays this environment."""
    return f"{file_name(env_id)}-{file_name(agent_id)}"


def next_run_dir(run: str, kind: str) -> Path:
    """Return the folder that `create_run_dir` would take now for the key `run` and this kind.

    Raises:
        ConfigError: `run` holds a run already.
    """
    for folder in _candidates(run, kind):
        if not _has_run(folder):
            return folder
    raise ConfigError(_taken(run))


def _has_run(folder: Path) -> bool:
    """Return whether a run began in the folder, even if its configuration has been lost since."""
    return any((folder / name).exists() for name in (MARK, EPISODES, "checkpoints"))


def _taken(run: str) -> str:
    return (
        f"{run} already holds a run: continue that run with --resume {run}, pass another --run, or "
        f"remove the folder (arl runs --delete {run})"
    )


def record_tasks(folder: Path, tasks: TaskSource) -> None:
    """Write the description of the training tasks, if their source has one, to `tasks.json`."""
    if description := tasks.describe():
        (folder / TASKS).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def config_of(run: Path, argument: str) -> Path:
    """Return the configuration file of a run's folder; errors quote `argument`, the user's input.

    Raises:
        ConfigError: there is no such folder, or no run in it.
    """
    if not run.is_dir():
        raise ConfigError(
            f"{argument}: no folder {run} here (in {Path.cwd()}); pass the folder of a run"
        )
    if not (run / MARK).exists() and _has_run(run):
        raise ConfigError(
            f"{argument}: {MARK} is missing in {run}, which has other files of a run: put it "
            "back from a copy, or begin a new run in another folder"
        )
    if not (run / MARK).exists():
        raise ConfigError(
            f"{argument}: no {MARK} in {run}, so it is not a run folder; pass the folder of a run "
            "(by default runs/ENV-AGENT-TIME)"
        )
    return run / MARK


FOLDERS = (EVALUATIONS, WARM_UP_STEPS.partition("/")[0], "logs")
"""The folders that a run may make before it has recorded anything."""


def release_if_unused(folder: Path, *, keep: Collection[str] = ()) -> bool:
    """Remove what a run has made in its folder, and return True, if it has recorded nothing to
    continue from. The user's own files in the folder stay, and the folders `keep` of `FOLDERS`."""
    # A trainer that is restarted truncates its metrics, but never its phases.
    files = [folder / name for name in ("metrics.jsonl", "phases.jsonl", WARM_UP_STEPS)]
    logs = (folder / EPISODES, *folder.glob(f"{EVALUATIONS}/*/{EPISODES}"))
    if any(file.exists() and file.stat().st_size for file in files) or any(map(_has_rows, logs)):
        return False
    names = (MARK, TASKS, MODEL, RUN, SERVE_INFO, EVALUATED, LOCK, "metrics.jsonl", "phases.jsonl")
    for name in (*names, EVALUATION_LINES, EPISODES, f"{EPISODES}-wal", f"{EPISODES}-shm"):
        with contextlib.suppress(OSError):  # a folder that the run could not write to
            (folder / name).unlink(missing_ok=True)
    for name in set(FOLDERS) - set(keep):
        shutil.rmtree(folder / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # the user has files in it
        folder.rmdir()
    return True


def _has_rows(log: Path) -> bool:
    """Return whether a log has groups or episodes, which may have taken hours."""
    if not log.exists():
        return False
    found = "SELECT 1 FROM groups UNION ALL SELECT 1 FROM trajectories LIMIT 1"
    try:
        with contextlib.closing(sqlite3.connect(log)) as db:
            return db.execute(found).fetchone() is not None
    except sqlite3.Error:  # no log that a run can be resumed from
        return False


@contextlib.contextmanager
def held(folder: Path) -> Generator[None]:
    """Hold the folder for this process, for a context; the kernel releases it when the process
    dies.

    Raises:
        ConfigError: a live run holds the folder.
    """
    try:
        opened = (folder / LOCK).open("a")
    except OSError as error:
        raise ConfigError(f"the run folder {shown(folder)} cannot be written: {error}") from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{shown(folder)} is the folder of a running run: another `arl` uses it"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()} {socket.gethostname()}\n")
        lock.flush()
        yield


def is_held(folder: Path) -> bool:
    """Return whether a process holds the folder, without writing to it."""
    try:
        with (folder / LOCK).open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def holder(folder: Path) -> int:
    """Return the id of the process on this machine that holds the folder, if it is held; 0 if
    unknown."""
    try:
        pid, host = (folder / LOCK).read_text(encoding="utf-8").split()
        return int(pid) if host == socket.gethostname() else 0
    except (OSError, ValueError):  # not there, or of an earlier version
        return 0


def shown(path: Path) -> str:
    """Return a path as a user would type it in the current folder."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def file_name(id: str) -> str:
    """Return an id as part of a file name."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in id).strip("-") or "run"


def _candidates(run: str, kind: str) -> list[Path]:
    if run:
        return [Path(run).resolve()]
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = f"{kind}-{stamp}"
    folder = Path("runs").resolve()
    return [folder / name, *(folder / f"{name}-{n}" for n in range(2, 100))]
