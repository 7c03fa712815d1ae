"""The record of what a run's folder holds, and of how its last process ended: `run.json`.

The file says nothing of a run that is running, finished or was killed: the lock, the exported model
and the absence of both do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import sysconfig
import time
import traceback
from collections.abc import Generator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from agentgym_rl.core import ConfigError, cause_of, is_dict, parse_json
from agentgym_rl.runtime import log as logs
from agentgym_rl.runtime import replace_text

from .checkpoints import list_checkpoints
from .run_folder import EVALUATED, FOLDERS, RUN, SERVE_INFO, release_if_unused, shown

log = logging.getLogger(__name__)

RunKind = Literal["train", "eval", "serve"]
_MOST_CHARS = 500
_FRAME = re.compile(r'(?:File "|\()([^"()\n]+)"?, line (\d+)')
"""A place in a traceback, or in a message as `(FILE, line 17, in run)`."""
_OTHERS = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a process of a run that neither finished nor was killed."""

    state: Literal["failed", "interrupted"]
    message: str = ""
    """The error in one line; empty: none, an interrupted run has none."""
    type: str = ""
    """The class of the error."""
    where: str = ""
    """The file and the line of the user's code in which it was raised, as `FILE:LINE`; empty: it
    was raised elsewhere."""
    at_s: float = 0.0
    """The time of the end, in seconds since 1970."""

    @property
    def failure(self) -> str:
        """Return the error in one line, with its place in the user's code; "" if the run was
        interrupted."""
        if self.state != "failed":
            return ""
        line = self.where.rpartition(":")[2]
        is_there = not line or f", line {line}" in self.message
        return self.message if is_there else f"{self.message} ({self.where})"


def kind_of_folder(folder: Path) -> RunKind:
    """Return what made the folder; those of earlier versions are known by their files."""
    kind: RunKind
    for kind in get_args(RunKind):
        if _read(folder).get("kind") == kind:
            return kind
    if (folder / EVALUATED).exists():
        return "eval"
    return "serve" if (folder / SERVE_INFO).exists() else "train"


def end_of(folder: Path) -> RunEnd | None:
    """Return the end of the last process of a run; None if it runs, finished or was killed."""
    try:
        return RunEnd(**_read(folder)["end"])
    except (KeyError, TypeError):
        return None


def _read(folder: Path) -> dict[str, Any]:
    try:
        found = parse_json((folder / RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if is_dict(found) else {}


def _write(folder: Path, kind: RunKind, end: RunEnd | None) -> None:
    text = json.dumps({"kind": kind, "end": end and asdict(end)}) + "\n"
    try:
        replace_text(folder / RUN, text)
    except OSError as error:  # a full disk, for example, which is then the reason of the end
        log.warning("%s cannot be written: %s", folder / RUN, error)


@contextlib.contextmanager
def recorded_end(folder: Path, kind: RunKind, *, is_new: bool) -> Generator[None]:
    """Record in `folder` what it holds and, if the context ends with an error, which one; the error
    gets a note that names the folder and the command that continues.

    A wrong configuration (`ConfigError`) of a new run that has recorded nothing yet removes the
    folder instead.
    """
    theirs = [name for name in FOLDERS if (folder / name).exists()]
    _write(folder, kind, None)
    try:
        yield
    except BaseException as error:
        cause = cause_of(error)
        if is_new and isinstance(cause, ConfigError) and release_if_unused(folder, keep=theirs):
            raise
        end = _end(cause)
        _write(folder, kind, end)
        if not isinstance(cause, GeneratorExit):
            cause.add_note(_continued(folder, kind, end))
        raise


def _continued(folder: Path, kind: RunKind, end: RunEnd) -> str:
    name = shown(folder)
    resume = f"arl {kind} --resume {name}{_trained_again(folder)}"
    way = "the same command again" if kind == "eval" else resume
    if end.state == "failed":
        return f"{name} keeps what there was before it (state: failed); continue with {way}"
    return f"{name} keeps what there is; continue with {way}"


def _trained_again(folder: Path) -> str:
    """Return how many trained batches are in no checkpoint, as a remark behind a command."""
    metrics, kept = folder / "metrics.jsonl", list_checkpoints(folder / "checkpoints")
    trained = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    step = int(kept[-1].name.removeprefix("step-")) if kept else 0
    lost = f"{trained - step} batch{'es are' if trained - step > 1 else ' is'} trained again"
    return f" (from batch {step}: {lost} from the log)" if trained > step else ""


def _end(error: BaseException) -> RunEnd:
    """Return the record of an end by this error."""
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)):
        return RunEnd("interrupted", at_s=time.time())
    return RunEnd("failed", one_line(error), type(error).__name__, place_of(error), time.time())


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line: of a message with a traceback, its first line and
    the error that the traceback ends with."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    first, last = lines[0], lines[-1]
    text = first if last in first or "Traceback" not in str(error) else f"{first} {last}"
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def place_of(error: BaseException) -> str:
    """Return the last place in the user's code that the traceback of an error, of its causes, or
    one in its message has, as `FILE:LINE`; "" if there is none."""
    found = _FRAME.findall("".join(traceback.format_exception(error)))
    places = [f"{shown(Path(file))}:{line}" for file, line in found if _is_users(file)]
    return places[-1] if places else ""


def _is_users(file: str) -> bool:
    path = Path(file).absolute()
    is_installed = any(name in path.parts for name in _OTHERS)
    is_known = any(path.is_relative_to(root) for root in _roots())
    return not (file.startswith("<") or is_installed or is_known)


@cache
def _roots() -> list[Path]:
    """Return the folders of Python's own modules and of our packages."""
    specs = (find_spec(name) for name in logs.OURS)
    ours = [place for it in specs for place in (it and it.submodule_search_locations) or ()]
    return [Path(sysconfig.get_path("stdlib")), *map(Path, ours)]
