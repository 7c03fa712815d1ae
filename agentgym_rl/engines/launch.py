"""The processes of engines, specified but not run (`cluster/` starts them); the common part of the
servers of other projects: their interpreter, seed, GPUs and first adapter."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors.numpy import save_file

from agentgym_rl.cluster.spec import ProcessSpec
from agentgym_rl.config import LoraConfig, OwnEngineConfig, ServerEngineConfig
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.model_folder import Heads, tensor_heads
from agentgym_rl.gym.sandbox import Probe
from agentgym_rl.runtime.atomic_file import replacing
from agentgym_rl.storage.weights_folder import (
    EMPTY_ADAPTER,
    LORA_A,
    LORA_B,
    PEFT_TENSORS,
    PREFIX,
    joined_with,
    write_peft_settings,
)

from .kind import kind_of

_SILENCE_LIMIT_S = 15.0
"""The smallest silence limit, in seconds: on a busy machine an event loop is late."""


def engine_process(
    engine: OwnEngineConfig,
    config_file: Path,
    *,
    index: int,
    label: str,
    host: str,
    port: int | str,
) -> ProcessSpec:
    """Return the process of server `index` at that address; an embedded server serves version
    `label`.

    `arl engine` replaces itself by the server of vLLM or SGLang, so the process is the server's
    own.
    """
    threads = str(engine.num_threads)
    return ProcessSpec(
        name=engine_name(index),
        argv=[
            *(sys.executable, "-m", "agentgym_rl", "engine"),
            *("--config", str(config_file)),
            *("--index", str(index)),
            *("--host", host),
            *("--port", str(port)),
            *("--weight-version", label),
        ],
        env={
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "ARL_DIE_WITH_PARENT": "1",
        },
        health_url=f"http://{host}:{port}/health",
        silence_limit_s=max(_SILENCE_LIMIT_S, engine.stall_timeout_s),
        restartable=True,
        imports=kind_of(engine).fork_imports(engine),
    )


def engine_name(index: int) -> str:
    """Return the name of a server's process, log and incarnations."""
    return f"engine-{index}"


_PROBE_TIMEOUT_S = 30.0
_PROBE = """
import json
from importlib import metadata
found = {{}}
for name in {names!r}:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
points = metadata.entry_points(group={group!r})
print(json.dumps([found, [point.value for point in points]]))
"""
_SEEDS_APART = 10_007
"""The distance between the server seeds of two consecutive run seeds."""


def interpreter(python: str) -> str:
    """Return the absolute path of engine.python; empty: of the running interpreter."""
    return os.path.abspath(shutil.which(python or sys.executable) or python)


def ask_packages(
    python: str, *names: str, group: str = "none"
) -> tuple[Mapping[str, str], list[str]]:
    """Return the versions of the packages `names` that an interpreter has, by name, and the values
    of its entry points of `group`.

    Raises:
        ConfigError: it is not a Python interpreter, or its packages cannot be queried.
    """
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE.format(names=names, group=group)],
            capture_output=True,
            text=True,
            check=True,
            timeout=_PROBE_TIMEOUT_S,
        )
        found, points = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        if isinstance(error, subprocess.CalledProcessError):
            why = f"exit status {error.returncode} {error.stderr.strip()[-500:]}".strip()
        else:
            why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"engine.python {python!r} is no Python interpreter that can be asked for its "
            f"packages: {why}"
        ) from error
    return found, points


def parse_release(version: str) -> tuple[int, ...]:
    """Return (0, 32, 0) for "0.32.0", "0.32.0.post1" or "0.32.0+cpu"; () for any other text."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def server_seed(seed: int, index: int) -> int:
    """Return the sampling seed of server `index`: servers with the same seed would sample the same
    tokens for the members of one group."""
    return (seed * _SEEDS_APART + index) % 2**31


class Build(Protocol):
    """An installed engine of another project."""

    @property
    def python(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def is_cpu(self) -> bool: ...


def probe_server(title: str, find_build: Callable[[], Build]) -> Probe:
    """Return whether `find_build`, which raises ConfigError, finds the project `title`."""
    try:
        build = find_build()
    except ConfigError as error:
        type = title.lower()
        return Probe(
            *(title, False, str(error)),
            fix=f"the embedded engine needs none of it; {title} in another interpreter: "
            f"--engine.type={type} --engine.python=FILE (docs/{type}.md)",
            required=False,
        )
    device = "CPU build" if build.is_cpu else "GPU build"
    return Probe(title, True, f"{build.version}, {device} ({build.python})", required=False)


def visible_gpus(config: ServerEngineConfig, index: int) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES of server `index`: its share of `gpus`, or of the visible
    ones."""
    each = config.tensor_parallel_size
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if config.gpus:
        gpus = [str(gpu) for gpu in config.gpus]
    elif config.num_servers == 1 and index == 0:
        return {}
    elif visible is None:  # the number of GPUs is unknown here; vLLM will report a lack
        gpus = [str(n) for n in range(each * (index + 1))]
    else:
        gpus = [gpu for gpu in visible.split(",") if gpu]
        servers = max(config.num_servers, index + 1)  # one more server evaluates on schedule
        if len(gpus) < each * servers:
            raise ConfigError(
                f"{servers} servers of engine.tensor_parallel_size {each} need "
                f"{each * servers} GPUs, CUDA_VISIBLE_DEVICES is {visible!r}"
            )
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[each * index : each * (index + 1)])}


def adapted_layers(heads: Heads, lora: LoraConfig, model_dir: Path) -> list[str]:
    """Return the names of the model's linear layers that get an adapter.

    Raises:
        ConfigError: it has none of the configured names.
    """
    targets = () if lora.target_modules == "all-linear" else lora.target_modules
    layers = [
        name.removesuffix(".weight")
        for name, head in sorted(heads.items())
        if re.search(r"\.\d+\..*_proj\.weight$", name) and len(head.shape) == 2
        if ".experts." not in name
        if not targets or name.split(".")[-2] in targets
    ]
    if not layers:
        raise ConfigError(
            f"lora.serve 'adapter': {model_dir} has no linear layer named like q_proj among "
            f"lora.target_modules {lora.target_modules!r}; set lora.serve to merged"
        )
    return layers


def empty_adapter(model_dir: Path, lora: LoraConfig, parent: Path) -> Path:
    """Write an adapter that has no effect, in peft's format, to a folder in `parent`; return the
    folder. A server answers requests for an adapter only if it was started with one.

    Raises:
        ConfigError: the model has no linear layer of the configured names, or is not readable.
    """
    heads = tensor_heads(model_dir)
    layers = adapted_layers(heads, lora, model_dir)
    rows, columns = heads[f"{layers[0]}.weight"].shape
    written = [layer for layer in joined_with(layers[0]) if f"{layer}.weight" in heads]
    # The parent may be a folder of the user's, with adapters of other models and ranks.
    folder = parent / f"{EMPTY_ADAPTER}-{rows}x{columns}-{lora.rank}"
    if folder.exists():  # another server of the run has written it
        return folder
    tensors: dict[str, np.ndarray] = {}
    for layer in written:
        shape = heads[f"{layer}.weight"].shape
        tensors[f"{PREFIX}{layer}{LORA_A}"] = np.zeros((lora.rank, shape[1]), np.float32)
        tensors[f"{PREFIX}{layer}{LORA_B}"] = np.zeros((shape[0], lora.rank), np.float32)
    with replacing(folder, part=parent / f".{folder.name}.{os.getpid()}") as part:
        part.mkdir(parents=True)
        write_peft_settings(part, written, rank=lora.rank, alpha=lora.alpha)
        save_file(tensors, part / PEFT_TENSORS)
    return folder
