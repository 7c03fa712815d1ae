"""Every engine of the contract suite: how it is opened, and what it can do.

`python -m tests.contracts.engines` prints the table of docs/engines.md, which is made from this.
A new engine adds a `Member`; a test asks it by `member.needs("seeds")`, or asserts the refusal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentgym_rl.core import Engine, EngineError, Interrupt

if TYPE_CHECKING:
    from torch import Tensor

CAPABILITIES: Mapping[str, str] = {
    "model": "computes: its log-probs equal a float32 forward of transformers",
    "seeds": "a seed makes a reply repeatable",
    "stops": "ends at stop strings and stop tokens",
    "context": "samples until its context is full",
    "cuts": "`top_p` is a share of what `top_k` left",
    "support": "reports the set that a token was drawn from under `top_p`, `top_k` or `min_p`",
    "grammars": "follows a grammar in Lark",
    "refusals": "refuses ids that are no tokens, and malformed requests",
    "keep": "interrupt `keep`: requests continue with their KV cache",
    "recompute": "interrupt `recompute`: their KV is rebuilt under the new weights",
    "abort": "interrupt `abort`: they end with their tokens so far",
    "wait": "interrupt `wait`: they end under the old weights",
    "held": "holds a request that came during a pause until the resume, whatever pause follows",
    "after_recompute": "goes on after two pauses of which the first was `recompute`",
    "told_waits": "fails a waiting pause when a resume comes first",
    "bad_files": "keeps its version when a file of weights is cut off or missing",
    "sums": "keeps its version when a byte of such a file is wrong",
    "names": "gives the served weights another label",
    "sleep": "sleeps at level 1 and loses no request",
    "deep_sleep": "refuses to wake without weights after level 2",
    "counters": "counts its requests and tokens",
    "completions": "serves `/v1/completions` to the OpenAI SDK",
}
"""What an engine may be able to do, as the table says it."""

LIMIT = 1024
"""The context length of every member."""


@dataclass(frozen=True)
class Member:
    """An engine of the suite.

    `lacks` has why it cannot do something, by capability; `notes` how it does what it can do;
    `elsewhere` the tests of what it can do, but not as the suite asks for it.

    `opens` gets the URL of its server, if it `needs_server`; it leaves the engine idle, awake and
    at version 0. `generate_route` takes raw bodies ("": it is not asked over HTTP).
    """

    name: str
    opens: Callable[[str], AbstractAsyncContextManager[Engine]]
    lacks: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)
    title: str = ""
    """The heading of its column; without one it is not in the table."""
    needs_server: bool = False
    generate_route: str = ""
    publishes: bool = True
    """A flag, true if versions reach it by a `Publisher`; else by its client."""
    polls_staging: bool = False
    long: int = 300
    """The length of a reply that lasts while something is done to the engine."""
    streams_versions: bool = True
    """A flag, true if versions come with their tokens; else they come with the last one."""

    def __post_init__(self) -> None:
        named = self.lacks.keys() | self.notes.keys() | self.elsewhere.keys()
        unknown = named - CAPABILITIES.keys()
        assert not unknown, f"{self.name}: no such capability: {sorted(unknown)}"

    def can(self, capability: str) -> bool:
        """Return whether the suite may ask this engine for it."""
        assert capability in CAPABILITIES
        return capability not in self.lacks | self.elsewhere

    def needs(self, *capabilities: str) -> None:
        """Skip the test if this engine lacks one of these."""
        for name in capabilities:
            if not self.can(name):
                why = (self.lacks | self.elsewhere)[name]
                pytest.skip(f"{self.name}: not {name}: {why}")

    async def publish(
        self,
        engine: Engine,
        folder: Path,
        tensors: Mapping[str, Tensor],
        *,
        version: int,
        interrupt: Interrupt,
    ) -> None:
        """Give the engine a version as a run does, with `interrupt` for requests in flight."""
        from agentgym_rl.weights import write_version

        if not self.publishes:
            path = write_version(folder, version, tensors)
            await engine.pause(interrupt=interrupt)
            await engine.update_weights(str(path), version=version)
            await engine.resume()
            return
        from agentgym_rl.weights import Publisher, SharedFiles, recognized
        from tests.kit.publishing import published

        publisher = Publisher(
            recognize=recognized,
            transport=SharedFiles(folder),
            interrupt=interrupt,
            timeout_s=120,
            polls_staging=self.polls_staging,
        )
        try:
            publisher.prepare(version, tensors)
            urls = {"engine-0": engine.url}  # type: ignore[attr-defined]
            await published(publisher, urls, version)
        finally:
            publisher.close()


@asynccontextmanager
async def _embedded(_: str) -> AsyncIterator[Engine]:
    import torch
    from arl_embedded.app import App
    from arl_embedded.engine import EmbeddedEngine
    from arl_embedded.model import load_model
    from arl_embedded.section import EmbeddedEngineConfig

    from agentgym_rl.engines import HttpEngine
    from agentgym_rl.models.resolve import BUNDLED
    from agentgym_rl.runtime import serving

    torch.set_num_threads(1)
    config = EmbeddedEngineConfig(device="cpu", max_model_len=LIMIT)
    # Without an end-of-sequence token a reply is as long as asked for.
    model = dataclasses.replace(load_model(BUNDLED, config), eos_ids=[])
    engine = EmbeddedEngine(model, model_dir=BUNDLED, config=config, seed=0, weight_version="0.0")
    app = App(engine, served_model_name="tiny")
    async with serving(app, host="127.0.0.1", port=0) as url, engine.running():
        client = HttpEngine(url, timeout_s=60)
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def _scripted(_: str, **options: Any) -> AsyncIterator[Engine]:
    from agentgym_rl.engines.scripted import Say, ScriptedEngine

    def script(prompt):
        if not 0 <= min(prompt) <= max(prompt) < 640:
            raise EngineError(f"{min(prompt)} or {max(prompt)} is not in the vocabulary")
        return Say([7] * 400, delay_s=0.001)

    yield ScriptedEngine(script, max_model_len=LIMIT, **options)


@asynccontextmanager
async def _vllm(url: str) -> AsyncIterator[Engine]:
    from arl_vllm.client import MAX_LOGPROBS, VllmEngine

    options: dict[str, Any] = {"timeout_s": 120, "polls_staging": True}
    client = VllmEngine(url, send_seed=False, num_alternatives=MAX_LOGPROBS, **options)
    try:
        await _at_version_0(client)
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def _sglang(url: str) -> AsyncIterator[Engine]:
    from arl_sglang.client import SglangEngine

    from agentgym_rl.models.resolve import BUNDLED

    client = SglangEngine(url, model_dir=BUNDLED, timeout_s=120)
    try:
        await _at_version_0(client)
        yield client
    finally:
        await client.close()


async def _at_version_0(engine: Any) -> None:
    """Make a server that an earlier test used as good as new."""
    import tempfile

    from agentgym_rl.weights import write_version
    from tests.vllm.plain import weights_of

    await engine.resume()
    with tempfile.TemporaryDirectory() as folder:
        path = write_version(Path(folder), 0, weights_of(0))
        await engine.update_weights(str(path), version=0)


_NO_MODEL = "its replies are scripted"
_OF_A_MODEL = ("model", "stops", "context", "cuts", "support", "grammars", "bad_files", "sums")
_CPU = "not on a CPU"

MEMBERS: Mapping[str, Member] = {
    member.name: member
    for member in (
        Member(
            "embedded",
            _embedded,
            title="embedded",
            generate_route="/inference/v1/generate",
            notes={"model": "transformers", "support": "reported"},
            long=900,
        ),
        Member(
            "scripted",
            _scripted,
            lacks={
                **dict.fromkeys(_OF_A_MODEL, _NO_MODEL),
                "counters": "it has a journal",
                "names": "a version has no label",
                "completions": "it is not a server",
            },
            title="scripted (tests)",
            publishes=False,
        ),
        Member(
            "versions_at_end",
            partial(_scripted, versions_at_end=True),
            lacks={
                **dict.fromkeys(_OF_A_MODEL, _NO_MODEL),
                "counters": "it has a journal",
                "names": "a version has no label",
                "completions": "it is not a server",
            },
            publishes=False,
            streams_versions=False,
        ),
        Member(
            "vllm",
            _vllm,
            lacks={
                "seeds": f"{_CPU}: a seed ends the CPU build",
                "held": "a pause of mode abort ends it, without tokens",
                "after_recompute": "its requests stand still for good",
                "told_waits": "such a pause goes on",
                "deep_sleep": "it wakes, and samples garbage",
            },
            notes={
                "support": "from as many log-probs a token; none where more than 255 are left",
                "sleep": "the CPU build frees nothing",
                "completions": "its own",
            },
            title="vLLM 0.32",
            needs_server=True,
            generate_route="/inference/v1/generate",
            polls_staging=True,
            long=900,
            streams_versions=False,
        ),
        Member(
            "sglang",
            _sglang,
            lacks={
                "seeds": f"{_CPU}: its attention there has no deterministic mode",
                "context": "a prompt must leave six positions free",
                "cuts": "it is a share of the whole distribution",
                "told_waits": "no such pause",
                "sleep": "it releases memory only without requests",
                "deep_sleep": "it does not sleep",
                "held": "a pause of mode abort ends it",
            },
            notes={
                "support": "by its sampling mask",
                "grammars": "with llguidance",
                "keep": "without its overlap scheduler",
                "wait": "by an update without a pause",
                "completions": "its own",
            },
            elsewhere={
                "grammars": "llguidance needs a model with an end: tests/sglang/test_grammars.py",
                "keep": "its client's update rebuilds the KV: tests/sglang/test_interrupts.py",
                "wait": "it has no such pause: tests/sglang/test_interrupts.py",
            },
            title="SGLang 0.5.23",
            needs_server=True,
            generate_route="/generate",
            publishes=False,
            long=900,
            streams_versions=False,
        ),
    )
}
"""Every engine, by the name of its tests' cases."""


def table() -> str:
    """Return the table of docs/engines.md."""
    shown = [member for member in MEMBERS.values() if member.title]
    rows = [["", *(member.title for member in shown)]]
    rows.append(["---"] * len(rows[0]))
    for name, says in CAPABILITIES.items():
        rows.append([says, *(_cell(member, name) for member in shown)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _cell(member: Member, name: str) -> str:
    if name in member.lacks:
        return f"no: {member.lacks[name]}"
    return f"yes: {member.notes[name]}" if name in member.notes else "yes"


if __name__ == "__main__":
    print(table(), end="")
