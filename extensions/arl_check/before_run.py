"""The checks of this machine before a run starts a process on it: GPUs, and their bfloat16."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from agentgym_rl.config import Config, OwnEngineConfig, may_use_gpu

from .engine_parts import check_parts

_ASK_S = 5.0
_BFLOAT16 = 8.0
"""The least compute capability of NVIDIA GPUs with arithmetic in bfloat16 (Ampere)."""


def check_devices(config: Config, trains: bool) -> Iterator[str]:
    """Yield the reasons why this machine cannot run processes of `config` on the devices that it
    selects, and why no machine can. The nodes of a cluster may have others."""
    yield from check_parts(config)
    if config.cluster.type != "local":
        return
    engine = config.engine if isinstance(config.engine, OwnEngineConfig) else None
    own = engine if engine and not engine.attached else None
    chosen = {
        "engine.device": own.runs_on if own else "cpu",
        "trainer.device": config.trainer.device if trains else "cpu",
    }
    on_gpu = [key for key, device in chosen.items() if device == "cuda"]
    if on_gpu and (why := no_gpu()):
        yield (
            f"{' and '.join(on_gpu)}: 'cuda', but {why}; use cpu, or auto for a GPU if there is one"
        )
        return
    dtypes = {
        "engine.device": ("engine.dtype", own.dtype if own else ""),
        "trainer.device": ("trainer.dtype", config.compute_dtype if engine else ""),
    }
    for place, device in chosen.items():
        key, dtype = dtypes[place]
        if dtype == "bfloat16" and may_use_gpu(device) and (card := without_bfloat16()):
            yield f"{key} is 'bfloat16', and {card}; use --{key}=float32"


def no_gpu() -> str:
    """Return why torch cannot use a GPU of NVIDIA or AMD here, without its slow import; "" if it
    may be able to."""
    if not may_use_gpu("auto"):
        return "this machine has no GPU (no device of a driver of NVIDIA or AMD)"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    found = find_spec("torch")
    file = Path(found.origin).with_name("version.py") if found and found.origin else None
    text = file.read_text(encoding="utf-8") if file and file.exists() else ""
    if text and re.findall(r"^(?:cuda|hip)\b[^=\n]*= None$", text, re.MULTILINE)[1:]:
        return "this torch was built for CPUs only (install one for CUDA: https://pytorch.org)"
    return ""


def without_bfloat16() -> str:
    """Return the GPU here without arithmetic in bfloat16; "" if some GPU has it, there is none, or
    no program of NVIDIA's to ask."""
    if (program := shutil.which("nvidia-smi")) is None:
        return ""
    ask = [program, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    cards = re.findall(r"(?m)^(.+),\s*(\d+\.\d+)\s*$", done.stdout)
    if not cards or any(float(capability) >= _BFLOAT16 for _, capability in cards):
        return ""
    name, capability = cards[0]
    return f"{name} has compute capability {capability}, and bfloat16 needs {_BFLOAT16}"
