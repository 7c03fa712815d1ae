"""The processes of engines, specified but not run (`cluster/` starts them); the common part of the
servers of other projects: their interpreter, seed, GPUs and first adapter."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np
from safetensors.numpy import save_file

from agentgym_rl.cluster.spec import ProcessSpec
from agentgym_rl.config import LoraConfig, OwnEngineConfig, ServerEngineConfig, may_use_gpu
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.model_folder import Heads, tensor_heads
from agentgym_rl.runtime.atomic_file import replacing
from agentgym_rl.storage.weights_folder import EMPTY_ADAPTER, LORA_A, LORA_B, PREFIX, joined_with

_IMPORTS = (
    "agentgym_rl.engines.embedded.main",
    "transformers.activations",  # this and the next: imports of any model of transformers
    "transformers.modeling_layers",
    "transformers.masking_utils",
    "agentgym_rl.cli.main",
)

_SILENCE_LIMIT_S = 15.0
"""The least silence limit, in seconds: on a busy machine an event loop is late."""


def engine_process(
    engine: OwnEngineConfig,
    config_file: Path,
    *,
    index: int,
    label: str,
    host: str,
    port: int | str,
) -> ProcessSpec:
    """Return the process of server `index` at that address; an embedded one serves version `label`.

    `arl engine` becomes the server of vLLM or SGLang, so its process is the server's own.
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
        imports=engine_imports(engine),
    )


def engine_name(index: int) -> str:
    """Return the name of a server's process, log and incarnations."""
    return f"engine-{index}"


def engine_imports(engine: OwnEngineConfig) -> tuple[str, ...]:
    """Return the modules that a server may be forked from; none if it may use a GPU, or is another
    project's."""
    if engine.type != "embedded" or may_use_gpu(engine.device):
        return ()
    return _IMPORTS


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
    """Return the versions of those packages that an interpreter has, by name, and the values of its
    entry points of a group.

    Raises:
        ConfigError: it is no interpreter that can be asked.
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


def exec_server(argv: list[str], env: Mapping[str, str]) -> NoReturn:
    """Become the server of `server_command`: this process is the server's from here on."""
    os.execvpe(argv[0], argv, {**os.environ, **env})


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
    """Write an adapter that changes nothing, in peft's format, to a folder in `parent`; return the
    folder. A server answers requests for an adapter only if it has one.

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
    settings = {
        "peft_type": "LORA",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": [layer.rpartition(".")[2] for layer in written],
    }
    tensors: dict[str, np.ndarray] = {}
    for layer in written:
        shape = heads[f"{layer}.weight"].shape
        tensors[f"{PREFIX}{layer}{LORA_A}"] = np.zeros((lora.rank, shape[1]), np.float32)
        tensors[f"{PREFIX}{layer}{LORA_B}"] = np.zeros((shape[0], lora.rank), np.float32)
    with replacing(folder, part=parent / f".{folder.name}.{os.getpid()}") as part:
        part.mkdir(parents=True)
        (part / "adapter_config.json").write_text(json.dumps(settings))
        save_file(tensors, part / "adapter_model.safetensors")
    return folder
