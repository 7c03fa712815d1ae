"""The closing lines on how fast episodes were played, at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .figures import counts, figures


def pace_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Of the JSON object of `arl train` or `arl eval`: what `pace.Pace` holds."""
    lag, sandbox, verifier = (result[key] for key in ("loop_lag_ms", "sandbox", "verifier"))
    yield from figures(
        "pace",
        f"{result['episodes']:,} episodes, {_figure(result['episodes_per_s'])}/s; event loop "
        f"late {lag['p99']:.1f} ms p99, {lag['max']:.0f} ms max",
    )
    if sandbox:
        yield from figures(
            "programs",
            f"{sandbox['programs']:,} in sandboxes, {_figure(sandbox['programs_per_s'])}/s, "
            f"{_figure(sandbox['programs_per_s_per_core'])}/s on each of {sandbox['cores']} cores",
        )
        yield from figures("", counts(sandbox["statuses"]))
    if verifier and verifier["calls"]:
        queue = verifier["queue_ms"]
        yield from figures(
            "verifications",
            f"{verifier['calls']:,}: {counts(verifier['statuses'])}; waits for a free process "
            f"{queue['mean']:.1f} ms mean, {queue['max']:.0f} ms max",
        )


def token_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Of the JSON object of `arl eval`: tokens, and what to know about them."""
    prompt, completion = result["prompt_tokens"], result["completion_tokens"]
    text = f"{prompt:,} of prompts, {completion:,} of replies"
    if result["uncounted_turns"]:
        text += f", and those of {result['uncounted_turns']:,} replies that came without a count"
    yield from figures("tokens", text)
    if result["cut_turns"]:
        yield from figures(
            "cut replies",
            f"{result['cut_turns']:,}, by rollout.max_tokens or the context length",
        )
    if result["outgrown"]:
        yield from figures(
            "outgrown", f"{result['outgrown']:,} episodes, whose conversation exceeded the context"
        )


def verdict_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Of the JSON object of `arl eval`: what the environment's verifier said, if it counts that."""
    shares = {
        name.removeprefix("verdict_"): share
        for name, share in result["metrics"].items()
        if name.startswith("verdict_") and share
    }
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    if ordered:
        text = ", ".join(f"{share:.1%} {verdict}" for verdict, share in ordered)
        yield from figures("verdicts", f"{text}, of what was submitted")


def _figure(value: float) -> str:
    """Three digits or so: 1,234, 12.3, 0.45."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
