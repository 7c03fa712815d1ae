"""The SGLang that an interpreter has, found without importing it, and what its releases can do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from agentgym_rl.core import ConfigError, Interrupt
from agentgym_rl.engines import Build, Releases, ask_packages
from agentgym_rl.engines.builds import interpreter

RELEASES = Releases(
    "SGLang",
    # With the routes and fields used here: 0.5.14 has no sampling masks; 0.5.24 has not been tried.
    lowest=(0, 5, 16),
    below=(0, 5, 24),
    spans_since=(0, 5, 20),  # the first that is known to
    without_spans=("abort", "wait"),
)

ADAPTER_INTERRUPTS: Sequence[Interrupt] = ("abort", "wait")
"""The values of `rollout.interrupt` with `lora.serve` "adapter": SGLang samples a request to its
end with the adapter that it began with."""

_KERNELS = ("sgl-kernel", "sglang-kernel")


@cache
def find_build(python: str = "") -> Build:
    """Return the checked SGLang of an interpreter (empty: the running one); the result is cached.

    Raises:
        ConfigError: no such interpreter, no SGLang in it, or one of another version; the message
            says what to install.
    """
    python = interpreter(python)
    found, _ = ask_packages(python, "sglang", "torch", *_KERNELS)
    if "sglang" not in found:
        raise ConfigError(
            f"no SGLang in {python} (engine.type 'sglang'). For a GPU, an environment of its own: "
            'pip install "sglang[all]"; for a CPU, as `arl docs sglang#install` describes it: pass '
            "--engine.python=.venv-sglang/bin/python"
        )
    is_cpu = "+cpu" in found.get("torch", "") or found.keys().isdisjoint(_KERNELS)
    return RELEASES.build(python, found["sglang"], is_cpu=is_cpu)
