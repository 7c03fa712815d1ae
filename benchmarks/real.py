"""The time and memory of a real language model (SmolLM2-135M), part by part.

The model is the folder of `--model FOLDER`, or of ARL_REAL_MODEL. ARL_BENCH_PARTS=equal,memory
measures only these parts, ARL_BENCH_ROUNDS=3 with fewer rounds than five. Every part compares two
systems in the same run, on the same weights, in turns, so that a busy machine slows both alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError

from . import _real_engine, _real_trainer
from ._common import hardware, say, versions
from ._toy import sized

FOLDER = Path("build/smollm2")
"""The folder that is measured if none is named."""

PARTS: Mapping[str, Callable[[Path, int], _real_engine.Part]] = {
    "equal": partial(_real_engine.speed, "equal"),
    "mixed": partial(_real_engine.speed, "mixed"),
    "agreement": _real_engine.agreement,
    "memory": _real_engine.memory,
    **_real_trainer.PARTS,
}
"""The parts by name. Each measures the model in a folder in that many rounds."""


def run(*, model: Path | None = None) -> dict[str, Any]:
    """Measure every part; `met` is whether every goal holds.

    Raises:
        ConfigError: there is no such model, or no such part.
    """
    folder = folder_of(model)
    rounds = int(os.environ.get("ARL_BENCH_ROUNDS", sized("5", toy="1")))
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    goals: dict[str, str] = {}
    met = True
    for name in _asked():
        say(f"{name}: {folder}")
        part = PARTS[name](folder, rounds)
        rows += [{"part": name} | row for row in part.rows]
        ratios |= part.ratios
        goals |= part.goals
        met = met and part.met
    return {
        "name": "real",
        "hardware": hardware("1 thread a process"),
        "versions": versions(),
        "rounds": rounds,
        "rows": rows,
        "ratios": ratios,
        "goal": "; ".join(f"{name} {bound}" for name, bound in goals.items()),
        "met": met,
    }


def lacking(model: Path | None = None) -> str:
    """Return what is missing, with the remedy; "": nothing."""
    folder = _named(model)
    if (folder / "config.json").exists():
        return ""
    return (
        f"no model folder {folder} (in {Path.cwd()}): `make real` makes one; or name another "
        "with --model FOLDER"
    )


def folder_of(model: Path | None) -> Path:
    """Return the folder of the real model.

    Raises:
        ConfigError: there is none.
    """
    if lacks := lacking(model):
        raise ConfigError(lacks)
    return _named(model).resolve()


def _named(model: Path | None) -> Path:
    return model or Path(os.environ.get("ARL_REAL_MODEL", FOLDER))


def _asked() -> list[str]:
    asked = [part for part in os.environ.get("ARL_BENCH_PARTS", "").split(",") if part]
    if odd := sorted(set(asked) - set(PARTS)):
        raise ConfigError(f"ARL_BENCH_PARTS names {', '.join(odd)}; parts: {', '.join(PARTS)}")
    return asked or list(PARTS)
