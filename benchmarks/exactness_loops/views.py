"""The engine's own record of every request: its journal, or its replies as copied by a relay.

Both are independent of the gateway, its router and its client: the journal is a file of the
engine's own process, and the relay copies bytes and parses them with the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym_rl.engines.scripted import JournalEntry


@dataclass
class View:
    """A request in the engine's record. `times_s` is None where the engine reports none."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    times_s: list[float] | None
    finish: str | None
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])


def journaled(path: Path) -> dict[str, View]:
    """Return the views of a journal of the embedded engine, by request id."""
    found: dict[str, View] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        assert entry["request_id"] not in found, "an engine got two requests with one id"
        found[entry["request_id"]] = View(
            entry["prompt_token_ids"],
            entry["token_ids"],
            entry["logprobs"],
            _versions(entry["weight_versions"]),
            entry["decode_times"],
            entry["finish_reason"],
        )
    return found


def scripted(journal: Iterable[JournalEntry]) -> dict[str, View]:
    """Return the views of a scripted engine's journal, by request id."""
    return {
        entry.request_id: View(
            list(entry.prompt),
            list(entry.token_ids),
            list(entry.logprobs),
            list(entry.versions),
            list(entry.times_s),
            "stop",
        )
        for entry in journal
    }


def relayed(exchanges: Iterable[tuple[bytes, bytes]]) -> dict[str, View]:
    """Return the views of (request body, reply bytes) pairs, by request id."""
    found: dict[str, View] = {}
    for asked, answered in exchanges:
        body = json.loads(asked)
        view = View(body["token_ids"], [], [], [], None, None, body["sampling_params"])
        spans: list[dict[str, Any]] = []
        for choice in _choices(answered):
            content = (choice.get("logprobs") or {}).get("content") or []
            view.ids += choice["token_ids"] or []
            view.logprobs += [item["logprob"] for item in content]
            spans = choice.get("weight_versions") or spans
            view.finish = choice.get("finish_reason")
        view.versions = _versions(spans)
        assert body["request_id"] not in found, "an engine got two requests with one id"
        found[body["request_id"]] = view
    return found


def turns(views: Mapping[str, View]) -> dict[str, View]:
    """Return the views by the id of a turn. A turn that an update interrupted is several requests
    (`ID`, `ID.1`, …), each of which must continue the output of those before it. A turn under a
    grammar begins again, so only its last request counts."""
    joined: dict[str, View] = {}
    for name in sorted(views, key=_segment):
        turn, number = _segment(name)
        view = views[name]
        if number == 0:
            joined[turn] = View(**vars(view))
            continue
        so_far = joined[turn]
        if view.prompt == so_far.prompt:
            joined[turn] = View(**vars(view))
            continue
        if view.prompt != so_far.prompt + so_far.ids:
            raise AssertionError(f"{name} was not fed what its turn had sampled")
        so_far.ids = so_far.ids + view.ids
        so_far.logprobs = so_far.logprobs + view.logprobs
        so_far.versions = so_far.versions + view.versions
        if so_far.times_s is not None:
            so_far.times_s = so_far.times_s + (view.times_s or [])
        so_far.finish = view.finish
    return joined


def _segment(name: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.+-\d+)\.(\d+)", name)
    return (found[1], int(found[2])) if found else (name, 0)


def _versions(spans: Iterable[Mapping[str, Any]]) -> list[int]:
    return [
        int(span["version"].rpartition(".")[2])
        for span in spans
        for _ in range(span["start"], span["end"])
    ]


def _choices(answered: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the choices of a stream of events, or of one complete reply; an error has none."""
    if not answered.startswith(b"data:"):
        yield from json.loads(answered).get("choices", []) if answered else []
        return
    for event in answered.split(b"\n\n"):
        payload = event.removeprefix(b"data:").strip()
        if payload and payload != b"[DONE]" and event.startswith(b"data:"):
            yield from json.loads(payload).get("choices") or []
