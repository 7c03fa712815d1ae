"""The records of the engine: counters, in the Prometheus text format; and the journal, an
append-only file with each request's prompt and sampled tokens, for audits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from agentgym_rl.engines import VersionSpan

from .request import Request


def _shown(kind: str, text: str) -> Any:
    """Return a field that is 0 at first, with its Prometheus type and help text."""
    return field(default=0, metadata={"kind": kind, "text": text})


@dataclass(slots=True)
class Counters:
    """The counters that the decode thread writes and /metrics reads."""

    running: int = _shown("gauge", "Requests being decoded.")
    waiting: int = _shown("gauge", "Requests in line.")
    requests: int = _shown("counter", "Requests accepted.")
    prompt_tokens: int = _shown("counter", "Prompt tokens of admitted requests.")
    prefilled_tokens: int = _shown("counter", "Tokens computed before a request's first step.")
    prefix_cache_queries: int = _shown("counter", "Tokens looked up among stored ones.")
    prefix_cache_hits: int = _shown("counter", "Tokens found there, and not computed again.")
    generated_tokens: int = _shown("counter", "Tokens sampled.")
    steps: int = _shown("counter", "Decode steps.")
    weight_updates: int = _shown("counter", "Policy versions put in place.")
    asleep: int = _shown("gauge", "The sleep state: 1 asleep, 0 awake.")
    weights_bytes: int = _shown("gauge", "Memory of the weights.")
    cache_bytes: int = _shown("gauge", "Memory of the KV cache.")
    prefix_cache_bytes: int = _shown("gauge", "Memory of the KV stored for later requests.")
    swap_seconds: float = _shown("counter", "Time spent on weight swaps.")
    finished: Counter[str] = field(default_factory=Counter[str])

    def finish(self, reason: str) -> None:
        self.finished[reason] += 1

    def prometheus(self) -> str:
        """Return all counters as `arl_engine_<name>`."""
        lines: list[str] = []
        for one in fields(self)[:-1]:
            kind = one.metadata["kind"]
            full = f"arl_engine_{one.name}" + ("_total" if kind == "counter" else "")
            lines += [f"# HELP {full} {one.metadata['text']}", f"# TYPE {full} {kind}"]
            lines.append(f"{full} {getattr(self, one.name)}")
        full = "arl_engine_finished_total"
        lines += [f"# HELP {full} Requests ended, by reason.", f"# TYPE {full} counter"]
        lines += [f'{full}{{reason="{r}"}} {n}' for r, n in sorted(self.finished.items())]
        return "\n".join(lines) + "\n"


class JournalLine(msgspec.Struct, kw_only=True):
    """A record of one request, written when it ends, before its reply is sent."""

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    weight_versions: list[VersionSpan]
    decode_times: list[float]
    temperature: float
    recomputed_at: list[int]
    """The output lengths at which the KV cache was rebuilt under the weights served then."""
    finish_reason: str | None
    error: str | None


class Journal:
    """A file of JSON lines at `path`, one per request; opened for appending, flushed line by line.

    Requests still open when the engine stops or dies get no reply and have no line.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()

    def write(self, request: Request) -> None:
        line = JournalLine(
            request_id=request.id,
            prompt_token_ids=request.prompt,
            token_ids=request.token_ids,
            logprobs=request.logprobs,
            weight_versions=request.spans(0, len(request.token_ids)),
            decode_times=request.times_s,
            temperature=request.sampling.temperature,
            recomputed_at=request.recomputed_at,
            finish_reason=request.finish_reason,
            error=request.error,
        )
        self._file.write(msgspec.json.encode(line) + b"\n")


def read_journal(path: Path) -> list[JournalLine]:
    """Return all lines of a journal; raise msgspec.DecodeError on a damaged one."""
    decoder = msgspec.json.Decoder(JournalLine)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
