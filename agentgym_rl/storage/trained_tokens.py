"""The training data of each trained token: files in a run's folder, one for each rank and step.

`RUN/tokens/step-000012.rank-0.npz` (numpy's format) has the proximal log-probs (under the policy at
the beginning of the step) and the advantages of the rows that the rank trained. Only `arl inspect`
reads the files, so they are not fsynced, and a run continues without them.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from agentgym_rl.core import ConfigError, FloatArray, Row, StorageError
from agentgym_rl.runtime import replacing

FOLDER = "tokens"
_NAME = re.compile(r"step-(\d{6,})\.rank-(\d+)\.npz")
_PART = re.compile(r"step-(\d{6,})\.rank-(\d+)\.part")


def write_tokens(
    run: Path,
    *,
    step: int,
    rank: int,
    rows: Sequence[Row],
    proximal: FloatArray,
    advantages: FloatArray,
) -> None:
    """Write a rank's file of a step, replacing an existing one.

    `proximal` and `advantages` are [N], over the trained tokens of the rows, one row after the
    other. Both are float32: on policy, log-probs differ from the engine's by 1e-5, which half
    precision cannot express; advantages without a scale may be beyond its range.

    Raises:
        StorageError: the file cannot be written, for example because the disk is full.
    """
    path = run / FOLDER / f"step-{step:06d}.rank-{rank}.npz"
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(exist_ok=True)
        with replacing(path, part=part), part.open("wb") as file:
            np.savez(
                file,
                rows=np.asarray([row_key(row) for row in rows], np.uint32),
                lengths=np.asarray([row.num_trained for row in rows], np.int32),
                proximal=np.asarray(proximal, np.float32),
                advantages=np.asarray(advantages, np.float32),
            )
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}") from error


def forget_tokens(run: Path, *, from_step: int) -> None:
    """Remove the files of steps that are trained again, perhaps by another number of ranks, and the
    partial files of killed ranks."""
    for step, path in [*_files(run), *_files(run, _PART)]:
        if step >= from_step:
            path.unlink(missing_ok=True)


def read_tokens(run: Path, step: int) -> Mapping[int, tuple[FloatArray, FloatArray]]:
    """Return proximal log-probs and advantages of the rows trained at `step`, by `row_key`; each
    is [N] over the row's trained tokens. The result is empty if no file of the step was kept.

    Raises:
        ConfigError: a file exists and cannot be read.
    """
    found: dict[int, tuple[FloatArray, FloatArray]] = {}
    for of, path in _files(run):
        if of != step:
            continue
        try:
            with np.load(path, allow_pickle=False) as file:
                ends = np.cumsum(file["lengths"])
                *proximal, rest = np.split(file["proximal"], ends)
                *advantages, more = np.split(file["advantages"], ends)
                if len(rest) or len(more):
                    raise ValueError("there are more values than tokens")
                pairs = zip(proximal, advantages, strict=True)
                found |= zip(file["rows"].tolist(), pairs, strict=True)
        except FileNotFoundError:  # removed just now: the step is trained again
            continue
        except Exception as error:  # zip, header and array errors of many classes
            raise ConfigError(f"{path} is no file of tokens: {error!r}") from error
    return found


def row_key(row: Row) -> int:
    """Return a checksum that is unique in a batch: no two rows were sampled at the same times."""
    key = zlib.crc32(np.ascontiguousarray(row.tokens, np.int32).tobytes())
    key = zlib.crc32(np.ascontiguousarray(row.behavior_logprobs, np.float32).tobytes(), key)
    return zlib.crc32(np.ascontiguousarray(row.times_s, np.float64).tobytes(), key)


def _files(run: Path, like: re.Pattern[str] = _NAME) -> list[tuple[int, Path]]:
    folder = run / FOLDER
    if not folder.is_dir():
        return []
    names = [(like.fullmatch(name), name) for name in sorted(os.listdir(folder))]
    return [(int(match[1]), folder / name) for match, name in names if match]
