"""The check of the model against the parts of an engine's server: heads, layers and experts that
its GPUs share out (the letters t, p and e of `cluster.allocation`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config, ServerEngineConfig
from agentgym_rl.core import text_settings
from agentgym_rl.models import model_folder

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""The names that families give the number of experts in config.json."""


def check_parts(config: Config) -> Iterator[str]:
    """Yield the reasons why the servers of a run cannot divide its model as they are to."""
    engine = config.engine
    if not isinstance(engine, ServerEngineConfig) or engine.attached:
        return
    sizes = {
        letter: int(getattr(engine, f"{name}_parallel_size", 1))
        for letter, name in (("t", "tensor"), ("p", "pipeline"), ("e", "expert"))
    }
    if max(sizes.values()) > 1:
        folder = model_folder(config.model, config.env.id)
        yield from _problems(text_settings(folder), folder, **sizes)


def _problems(about: dict[str, Any], folder: Path, *, t: int, p: int, e: int) -> Iterator[str]:
    """Yield the numbers of a model that so many parts do not divide, with the nearest that do."""
    heads, layers = _number(about, "num_attention_heads"), _number(about, "num_hidden_layers")
    experts = next((found for name in _EXPERTS if (found := _number(about, name))), 0)
    if heads and heads % t:
        yield (
            f"engine.tensor_parallel_size {t} does not divide the {heads} attention heads of "
            f"{folder}; the nearest that does is {_nearest(heads, t)}"
        )
    if layers and p > layers:  # a remainder is dealt out by the engine
        yield (
            f"engine.pipeline_parallel_size {p}: {folder} has {layers} layers, and each stage "
            f"needs one; the nearest is {layers}"
        )
    if e > 1 and not experts:
        yield f"engine.expert_parallel_size {e}: {folder} has no experts; leave it out"
    elif e > 1 and experts % e:
        yield (
            f"engine.expert_parallel_size {e} does not divide the {experts} experts of {folder}; "
            f"the nearest that does is {_nearest(experts, e)}"
        )


def _number(about: dict[str, Any], name: str) -> int:
    value = about.get(name)
    return value if isinstance(value, int) else 0


def _nearest(whole: int, part: int) -> int:
    """Return the divisor of a number that is the nearest to another number."""
    divisors = (it for it in range(1, whole + 1) if whole % it == 0)
    return min(divisors, key=lambda it: abs(it - part))
