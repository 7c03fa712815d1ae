"""The engine's counters, in the Prometheus text format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_HELP = {
    "running": ("gauge", "Requests being decoded."),
    "waiting": ("gauge", "Requests in line."),
    "requests": ("counter", "Requests accepted."),
    "prompt_tokens": ("counter", "Prompt tokens of admitted requests."),
    "generated_tokens": ("counter", "Tokens sampled."),
    "steps": ("counter", "Decode steps."),
    "weight_updates": ("counter", "Policy versions put in place."),
    "asleep": ("gauge", "The sleep state: 1 asleep, 0 awake."),
    "weights_bytes": ("gauge", "Memory of the weights."),
    "cache_bytes": ("gauge", "Memory of the KV cache."),
    "swap_seconds": ("counter", "Time spent on weight swaps."),
}


@dataclass(slots=True)
class Counters:
    """The counters that the decode thread writes and /metrics reads."""

    running: int = 0
    waiting: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    weight_updates: int = 0
    asleep: int = 0
    weights_bytes: int = 0
    cache_bytes: int = 0
    swap_seconds: float = 0.0
    finished: Counter[str] = field(default_factory=Counter[str])

    def finish(self, reason: str) -> None:
        self.finished[reason] += 1

    def prometheus(self) -> str:
        """Return all counters as `arl_engine_<name>`."""
        lines: list[str] = []
        for name, (kind, text) in _HELP.items():
            full = f"arl_engine_{name}" + ("_total" if kind == "counter" else "")
            lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
            lines.append(f"{full} {getattr(self, name)}")
        full = "arl_engine_finished_total"
        lines += [f"# HELP {full} Requests ended, by reason.", f"# TYPE {full} counter"]
        lines += [f'{full}{{reason="{r}"}} {n}' for r, n in sorted(self.finished.items())]
        return "\n".join(lines) + "\n"
