"""The command line and environment of an SGLang server, and the SGLang that an interpreter has,
found without importing it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentgym_rl.config import LoraConfig, ServerEngineConfig
from agentgym_rl.core.engine import Interrupt, adapter_name
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.model_folder import tensor_heads
from agentgym_rl.engines.launch import (
    adapted_layers,
    ask_packages,
    empty_adapter,
    interpreter,
    parse_release,
    server_seed,
    visible_gpus,
)
from agentgym_rl.models.defaults import kv_bytes_per_token

from .server import DIE_WITH_PARENT

LOWEST, BELOW = (0, 5, 16), (0, 5, 24)
"""The bounds of versions [LOWEST, BELOW) with the routes and fields used here: 0.5.14 has no
sampling masks; 0.5.24 has not been tried."""
SPANS_SINCE = (0, 5, 20)
"""The first version known to report which policy version sampled which token."""

_KERNELS = ("sgl-kernel", "sglang-kernel")
_SERVER = Path(__file__).with_name("server.py")


@dataclass(frozen=True, slots=True)
class SglangBuild:
    """An SGLang that this package can drive, and the interpreter that has it."""

    python: str
    version: str
    is_cpu: bool

    @property
    def has_spans(self) -> bool:
        """Return whether it reports which policy version sampled which token."""
        return reports_spans(self.version)


@cache
def find_build(python: str = "") -> SglangBuild:
    """Return the checked SGLang of an interpreter (empty: the running one); the result is cached.

    Raises:
        ConfigError: no such interpreter, no SGLang in it, or one of another version; the message
            names what to install.
    """
    python = interpreter(python)
    found, _ = ask_packages(python, "sglang", "torch", *_KERNELS)
    if "sglang" not in found:
        raise ConfigError(
            f"no SGLang in {python} (engine.type 'sglang'). For a GPU, an environment of its own: "
            'pip install "sglang[all]"; for a CPU, one from requirements/sglang-cpu.txt (`make '
            "test-sglang` makes .venv-sglang): pass --engine.python=.venv-sglang/bin/python"
        )
    check_version(found["sglang"], where=python)
    is_cpu = "+cpu" in found.get("torch", "") or found.keys().isdisjoint(_KERNELS)
    return SglangBuild(python, found["sglang"], is_cpu)


def check_version(version: str, *, where: str) -> None:
    """Check that this package can drive that version of SGLang; else raise ConfigError."""
    if not LOWEST <= parse_release(version) < BELOW:
        low, high = (".".join(map(str, bound)) for bound in (LOWEST, BELOW))
        raise ConfigError(f"{where} has SGLang {version}; supported is >={low},<{high}")


def reports_spans(version: str) -> bool:
    """Return whether that version of SGLang reports which policy version sampled which token."""
    return parse_release(version) >= SPANS_SINCE


def check_interrupt(
    interrupt: Interrupt, *, has_spans: bool, overlaps: bool = False, where: str
) -> None:
    """Check that each token's version is known in spite of interrupts; else raise ConfigError.

    `overlaps`: the server has the overlap scheduler. A run turns it off for `keep`.
    """
    if not has_spans and interrupt not in ("abort", "wait"):
        raise ConfigError(
            f"the SGLang at {where} does not report the version of each token, so it "
            f"needs rollout.interrupt 'abort' or 'wait', got {interrupt!r}"
        )
    if overlaps and interrupt == "keep":
        raise ConfigError(
            f"the SGLang at {where} has the overlap scheduler, with which rollout.interrupt 'keep' "
            "labels a token wrongly at each update: start it with --disable-overlap-schedule, or "
            "use recompute, abort or wait"
        )


def server_command(
    config: ServerEngineConfig,
    *,
    model_dir: Path,
    served_model_name: str,
    host: str,
    port: int,
    index: int,
    interrupt: Interrupt,
    seed: int,
    label: str,
    lora: LoraConfig | None = None,
    run_dir: Path | None = None,
    build: SglangBuild | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the argv of server `index`, and the additions to its environment.

    `seed` is for sampling; each server gets a different one. `label` is that of the weights in the
    model folder. `build` is the result of `find_build(config.python)`, which is called if it is
    None.

    `lora`: with `serve` "adapter", the server computes adapters in addition to the model; its first
    one, which changes nothing, is written to `run_dir` (default: a temporary folder).

    Raises:
        ConfigError: see `find_build` and `empty_adapter`; or the model's config.json has no sizes
            of its KV cache.
    """
    build = build or find_build(config.python)
    argv = [
        # -P: nothing in the current folder may replace an installed package.
        *(build.python, "-P", str(_SERVER)),
        *("--model-path", str(model_dir)),
        *("--served-model-name", served_model_name),
        *("--host", host),
        *("--port", str(port)),
        *("--dtype", config.dtype),
        *("--context-length", str(config.max_model_len)),
        *("--max-running-requests", str(config.max_num_seqs)),
        *("--stream-interval", str(config.stream_interval)),
        *("--random-seed", str(server_seed(seed, index))),
        *("--weight-version", label),
        # The only backend that reads the grammars of `agentgym_rl.gateway.parsers.lark`.
        *("--grammar-backend", "llguidance"),
        "--incremental-streaming-output",
        "--enable-metrics",
        "--sleep-on-idle",  # else it uses a full core without any request
    ]
    if config.prefix_cache == "off":
        argv.append("--disable-radix-cache")
    if interrupt == "keep":  # with overlap, the last token before a pause gets the next version
        argv.append("--disable-overlap-schedule")
    if config.tensor_parallel_size > 1:
        argv += ["--tensor-parallel-size", str(config.tensor_parallel_size)]
    if build.is_cpu:
        tokens = config.kv_cache_gib * 2**30 // kv_bytes_per_token(model_dir, config.dtype)
        argv += [
            *("--device", "cpu"),
            *("--attention-backend", "torch_native"),
            *("--max-total-tokens", str(tokens)),
        ]
    elif config.gpu_memory_utilization:
        argv += ["--mem-fraction-static", f"{config.gpu_memory_utilization:g}"]
    if lora is not None and lora.serve == "adapter":
        argv += _adapter_flags(lora, model_dir, run_dir, label)
        if build.is_cpu:
            argv += ["--lora-backend", "torch_native"]
    return [*argv, *config.flags], _environment(config, build, index)


_ADAPTERS_AT_ONCE = 4
"""The number of adapters that are computed in one step: those of the version that serves, of the
one before, of requests that are even older, and none."""


def _adapter_flags(
    lora: LoraConfig, model_dir: Path, run_dir: Path | None, label: str
) -> list[str]:
    """Return the flags of a server that computes adapters; the one of version `label` is empty."""
    folder = empty_adapter(model_dir, lora, run_dir or Path(tempfile.mkdtemp(prefix="arl-")))
    layers = adapted_layers(tensor_heads(model_dir), lora, model_dir)
    return [
        *("--enable-lora", "--max-lora-rank", str(lora.rank)),
        *("--max-loras-per-batch", str(_ADAPTERS_AT_ONCE)),
        *("--lora-paths", f"{adapter_name(label)}={folder}"),
        *("--lora-target-modules", *sorted({layer.rpartition(".")[2] for layer in layers})),
    ]


def _environment(config: ServerEngineConfig, build: SglangBuild, index: int) -> dict[str, str]:
    threads = str(config.num_threads)
    env = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",  # the model is a folder
        # /health would sample a token, which a paused server does not.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        DIE_WITH_PARENT: "1",
    }
    if build.is_cpu:
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    else:
        env |= visible_gpus(config, index)
    return env | config.env
