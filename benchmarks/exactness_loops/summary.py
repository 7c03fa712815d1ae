"""The sums of the comparisons of all episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .client import Client
from .compare import compare
from .play import Played
from .views import View


def summarize(played: Sequence[Played], views: Mapping[str, View]) -> dict[str, Any]:
    """Return the mismatches by field, the forks by cause, and the number of times of each
    feature."""
    wrong: Counter[str] = Counter()
    forks: Counter[str] = Counter()
    features: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    totals: Counter[str] = Counter(episodes=len(played))
    for one in played:
        record, client = one.record, one.client
        delivered = [name for got in client.got for name in got.names]
        wrong += compare(
            record.rows,
            one.names,
            views,
            delivered=set(delivered),
            temperature=one.temperature,
            trains=one.temperature > 0,
        )
        wrong += _wrong_errors(client, views, one.end_ids)
        counters = record.counters
        lost = counters["lost_replies"]
        wrong["rows"] += not lost and len(record.rows) != counters["forks"] + 1
        wrong["plain_forks"] += one.one_row and len(record.rows) != 1
        wrong["unmatched"] += counters["unmatched_turns"]
        for name in ("wrong_retries", "broken_replies"):
            wrong[name] += client.done[name]
        errors.update([client.error] if client.error else [])
        forks.update({k[6:]: n for k, n in counters.items() if k.startswith("forks_")})
        features.update(_features(one, views))
        totals.update(
            turns=record.num_turns,
            sampled_tokens=counters["sampled_tokens"],
            trained_tokens=counters["trained_tokens"],
            rows=len(record.rows),
            forks=counters["forks"],
            plain_episodes=one.one_row,
        )
    return {
        **totals,
        "mismatches": dict(+wrong),
        "forks_by_cause": dict(+forks),
        "features": dict(+features),
        "errors": dict(errors),
    }


def _wrong_errors(
    client: Client, views: Mapping[str, View], end_ids: Collection[int]
) -> Counter[str]:
    """Count the differences of the usage and log-probs that clients got from the engine's
    record."""
    wrong: Counter[str] = Counter()
    for got in client.got:
        mine = [views[name] for name in got.names]
        if got.usage:
            counts = (got.usage["prompt_tokens"], got.usage["completion_tokens"])
            wrong["usage"] += counts != (len(mine[0].prompt), sum(len(view.ids) for view in mine))
        for view, reported in zip(mine, got.logprobs, strict=True):
            if reported is not None:
                pairs = zip(view.ids, view.logprobs, strict=True)
                wrong["told_logprobs"] += reported != [lp for id, lp in pairs if id not in end_ids]
    return wrong


def _features(one: Played, views: Mapping[str, View]) -> dict[str, int]:
    counters, done = one.record.counters, one.client.done
    turns = [views[name] for name in one.names]
    stopped = [view for view in turns if view.finish == "stop"]
    return {
        "tool calls": counters["tool_calls"],
        "malformed calls": counters["malformed_calls"],
        **{k: done[k] for k in ("thoughts", "thoughts before calls", "parallel calls", "n>1")},
        **{k: done[k] for k in ("unicode said", "unicode heard", "streamed", "overflows")},
        "truncated": counters["length_turns"],
        "stop strings": sum(view.ids[-1] not in one.end_ids for view in stopped),
        "turns of several versions": sum(len(set(view.versions)) > 1 for view in turns),
        "retries": done["retry"] + done["race"] + done["drop"],
        "joined retries": counters["joined_retries"],
        "hang-ups": done["drop"] + done["leave"],
        "undelivered": counters["undelivered_turns"],
        "lost replies": counters["lost_replies"],
        "greedy turns": counters["greedy_turns"],
        "forced turns": counters["constrained_turns"],
        "tokens without an alternative": counters["single_choice_tokens"],
        "parts as texts": counters["placeholders"],
        "summaries": counters["forks_summary"],
        "trusted edits": counters["trusted_edits"],
        "ambiguous echoes": counters["ambiguous_echoes"],
        "side lineages": counters["side_turns"],
    }
