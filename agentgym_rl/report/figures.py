"""The lines of a summary, at most 80 columns wide: names with texts, the rewards by environment,
and the throughput."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

INDENT = 17
"""The column at which the text of a name begins."""
_WIDTH = 80


def figures(name: str, text: str) -> list[str]:
    """Wrap a name and its text into lines; the name "" continues the previous name."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{name:<{INDENT}}",
        subsequent_indent=" " * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def usd(cost: float) -> str:
    """Format a cost: two decimals from one dollar up, three significant digits below."""
    return f"${cost:,.2f}" if cost >= 1 else f"${cost:.3g}"


def counts(found: Mapping[str, int]) -> str:
    """Return "90 ok, 3 timeout": the most frequent first."""
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {name}" for name, count in ordered)


_REWARD = re.compile(r"env/(.+)/reward/mean")


def env_rewards(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the mean reward of a training batch by environment; empty unless it has several."""
    found = {m[1]: value for name, value in metrics.items() if (m := _REWARD.fullmatch(name))}
    return found if len(found) > 1 else {}


def step_line(metrics: Mapping[str, float], *, width: int) -> str:
    """Return "math 0.52  code 0.31", cut to `width`; "" unless several environments played."""
    text = "  ".join(f"{id} {reward:.2f}" for id, reward in env_rewards(metrics).items())
    return text if len(text) <= width else f"{text[: width - 1]}…"


def trained_lines(envs: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    """Yield a line of held-out rewards before and after training for each environment.

    `envs` is that field of `arl train --json`.
    """
    for env_id, reward in envs.items() if len(envs) > 1 else ():
        yield from figures("", f"{_shown(reward['before'])} → {_shown(reward['after'])} {env_id}")


def evaluated_lines(envs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line of held-out reward for each environment; `envs` is that field of `arl eval
    --json`."""
    for env_id, found in envs.items() if len(envs) > 1 else ():
        said = f"{found['reward']:.3f} over {found['num_tasks']:,} tasks of {env_id}"
        yield from figures("", said)


def _shown(reward: float | None) -> str:
    return "-" if reward is None else f"{reward:.3f}"


_LATE_MS = 1000.0
"""The lateness of the event loop, the 99th percentile, from which a summary shows it: less costs
little beside the seconds of a turn."""


def pace_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of `throughput.Pace` from the JSON object of `arl train` or `arl eval`."""
    lag, sandbox, verifier = (result[key] for key in ("loop_lag_ms", "sandbox", "verifier"))
    yield from figures(
        "pace", f"{result['episodes']:,} episodes, {_figure(result['episodes_per_s'])}/s"
    )
    if lag["p99"] >= _LATE_MS:
        yield from figures(
            "",
            f"slowed down: code that does not await held up all other episodes, for "
            f"{lag['p99'] / 1000:.1f} s in a hundredth of all cases and {lag['max'] / 1000:.1f} s "
            "at most",
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


def judge_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the calls and the cost of judges from the JSON object of `arl train`, if it has any."""
    if found := result["judges"]:
        calls, tokens = (found.get(f"judge_{name}", 0.0) for name in ("calls", "tokens"))
        cost = f", {usd(found['judge_usd'])}" if "judge_usd" in found else ""
        yield from figures("judges", f"{calls:,.0f} calls, {tokens:,.0f} tokens{cost}")


_ODD = {
    "filtered_turns": "withheld by a content filter",
    "empty_turns": "without text and calls",
    "text_calls": "with a tool call in their text, which was not parsed",
}


def token_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the token counts, and cut or outgrown turns, from the JSON object of `arl eval`."""
    prompt, completion = result["prompt_tokens"], result["completion_tokens"]
    text = f"{prompt:,} of prompts, {completion:,} of replies"
    if result["uncounted_turns"]:
        text += f", and those of {result['uncounted_turns']:,} replies that came without a count"
    yield from figures("tokens", text)
    if result["cut_turns"]:
        yield from figures(
            "cut replies",
            f"{result['cut_turns']:,}, by rollout.max_tokens or the context length: raise them",
        )
    odd = {said: result[name] for name, said in _ODD.items() if result[name]}
    if odd:
        yield from figures("odd replies", counts(odd))
    if result["outgrown"]:
        yield from figures(
            "outgrown", f"{result['outgrown']:,} episodes, whose conversation exceeded the context"
        )


def verdict_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the shares of verifier verdicts from the JSON object of `arl eval`, if it has any."""
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
    """Format a number with about three digits: 1,234, 12.3, 0.45."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
