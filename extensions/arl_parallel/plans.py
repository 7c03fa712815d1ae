"""The plans of tensor parallelism: the matrices of each family that are cut, and how.

A block's attention and its dense feed-forward layer gather the tokens of the ranks before their
first matrices, which are cut by rows (by output features), and add up over the ranks after their
last matrix, which is cut by columns (Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053).
Outside them, each rank has its own tokens. Experts are cut whole, by their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core import TrainerError

FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3_text", "granite", "phi", "phi3"),
    *("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3"),
)
"""The types of models (`model_type`) with a plan."""
Ranges = Sequence[tuple[int, int]]
"""The ranges, first and end, of a part of a parameter."""
_HEADS = ("q_proj", "q_b_proj", "kv_b_proj")
_KEYS = ("k_proj", "v_proj")
_ROWS = (*_HEADS, *_KEYS, "gate_proj", "up_proj", "fc1", "qkv_proj", "gate_up_proj")
_COLUMNS = ("o_proj", "dense", "down_proj", "fc2")
_PARTS = ("self_attn", "mlp")


@dataclass(frozen=True, slots=True)
class Heads:
    """The numbers of heads of a model."""

    queries: int
    keys: int

    @classmethod
    def of(cls, config: Any) -> Heads:
        """Return the numbers of a transformers text configuration."""
        queries = int(config.num_attention_heads)
        return cls(queries, int(getattr(config, "num_key_value_heads", None) or queries))


def check_family(config: Any, tensor: int) -> None:
    """Check that there is a plan for a model, and that its heads can be dealt.

    Raises:
        TrainerError: it is of another family; the heads do not divide.
    """
    if config.model_type not in FAMILIES:
        raise TrainerError(
            f"t{tensor}: no plan of tensor parallelism for {config.model_type!r}; allowed: "
            f"{', '.join(FAMILIES)}. Remedy: c in place of t, or d alone"
        )
    queries = Heads.of(config).queries
    if queries % tensor:
        raise TrainerError(
            f"t{tensor} does not divide the {queries} attention heads of the model; the nearest "
            f"number that does is t{nearest_divisor(queries, tensor)}"
        )


def nearest_divisor(total: int, number: int) -> int:
    """Return the divisor of `total` that is nearest to `number`, the smaller one of two."""
    divisors = (n for n in range(1, total + 1) if total % n == 0)
    return min(divisors, key=lambda n: abs(n - number))


def _is_part(name: str) -> bool:
    """Return whether a module gathers tokens if matrices directly in it are cut."""
    return name.rpartition(".")[2] in _PARTS


def rule(name: str, heads: Heads, tensor: int) -> str:
    """Return how a linear layer's weight is cut: "rows", "columns", or "" if it is not."""
    part, _, leaf = name.rpartition(".")
    if not _is_part(part):
        return ""
    if leaf in _KEYS and heads.keys % tensor:
        return ""  # each rank computes all of them, and takes those that its queries read
    return "rows" if leaf in _ROWS else "columns" if leaf in _COLUMNS else ""


def segments(name: str, size: int, config: Any, tensor: int) -> Sequence[int]:
    """Return the lengths of the matrices that one weight joins, each of which is cut by itself.

    Raises:
        TrainerError: keys and values of a joined matrix cannot be dealt.
    """
    leaf = name.rpartition(".")[2]
    if leaf == "gate_up_proj":
        return [size // 2] * 2
    if leaf == "qkv_proj":
        heads = Heads.of(config)
        if heads.keys % tensor:
            raise TrainerError(
                f"t{tensor} does not divide the {heads.keys} heads of keys, which this model joins "
                "with those of queries in one matrix"
            )
        each = size // (heads.queries + 2 * heads.keys)
        return [each * n for n in (heads.queries, heads.keys, heads.keys)]
    return [size]


def ranges(lengths: Sequence[int], count: int) -> list[Ranges]:
    """Return for each of `count` parts its range of each segment; the last ones may be shorter."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    first = 0
    for length in lengths:
        each = -(-length // count)
        for place, its in enumerate(found):
            its.append((first + min(place * each, length), first + min((place + 1) * each, length)))
        first += length
    return [*found]
