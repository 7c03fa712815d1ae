"""Adapters that a real SGLang server computes beside its weights: each token is exactly of the
adapter that its version says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from arl_lora.keys import LoraConfig
from torch import Tensor

from agentgym_rl.core import Delta, SamplingParams, WeightsError
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.weights import Publisher, SharedFiles, recognized, write_version
from agentgym_rl.weights.adapter import merged
from tests.kit.publishing import publish_now
from tests.vllm.plain import PlainForward, endless_model, weights_of, worst_difference
from tests.vllm.test_transfer import DAMAGE, adapter_of

from .test_client import reply

PROMPTS = [[5, 80, 33, 210, 7], list(range(10, 60))]
TOKENS = 24


class Table:
    """A server with LoRA, the adapters published to it, and the weights that they make."""

    def __init__(self, server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.numbers = itertools.count(1)
        self.weights: dict[int, Mapping[str, Tensor]] = {0: weights_of(0)}
        self.forward = PlainForward()

    def publish(self, adapter: dict[str, Tensor], *, interrupt: str = "abort") -> int:
        """Publish an adapter as a trainer does that has just started; return its version."""
        version = next(self.numbers)
        publisher = Publisher(
            recognize=recognized,
            transport=SharedFiles(self.folder, model_dir=self.server.model_dir),
            interrupt=interrupt,
            timeout_s=120,
            polls_staging=True,
        )
        try:
            publisher.prepare(version, adapter)
            publish_now(publisher, {"engine": self.server.url}, version)
        finally:
            publisher.close()
        self.weights[version] = dict(merged(adapter, BUNDLED))
        return version

    def gap(self, prompt: list[int], parts: list[Delta]) -> float:
        """The largest difference from a plain forward of the weights of each token's version."""
        worst = 0.0
        for part in parts:
            versions = list(part.versions)
            assert len(set(versions)) == 1
            gap = worst_difference(
                self.forward, prompt, part.token_ids, part.logprobs, versions, weights=self.weights
            )
            worst, prompt = max(worst, gap), prompt + part.token_ids
        return worst

    def check_serves(self, version: int) -> None:
        """Check tokens of all prompts, twice: the second time their KV is there."""

        async def sampled() -> list[tuple[list[int], Delta]]:
            engine = self.server.client()
            try:
                assert await engine.served_version() == version
                return [
                    (prompt, await reply(engine, SamplingParams(TOKENS), name=name, prompt=prompt))
                    for name in ("one", "two")
                    for prompt in PROMPTS
                ]
            finally:
                await engine.close()

        for prompt, part in asyncio.run(sampled()):
            assert list(part.versions) == [version] * TOKENS
            assert self.gap(prompt, [part]) < 1e-4


@pytest.fixture(scope="module")
def table(start_sglang, tmp_path_factory):
    torch.set_num_threads(1)
    server = start_sglang(
        model_dir=endless_model(tmp_path_factory.mktemp("model") / "endless"),
        interrupt="abort",
        lora=LoraConfig(rank=4, serve="adapter"),
        stream_interval=1,
        # llguidance takes no tokenizer without an end-of-sequence token.
        flags=("--grammar-backend", "none"),
    )
    yield Table(server, tmp_path_factory.mktemp("versions"))
    server.stop()


def only(adapter: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    """The adapter of some layers alone."""
    return {
        n: t for n, t in adapter.items() if not n.startswith("base") or any(x in n for x in names)
    }


@pytest.mark.timeout(1800)
def test_each_version_serves_exactly_as_its_merged_weights(table):
    table.check_serves(0)  # the first adapter changes nothing
    for adapter in (
        adapter_of(1),
        adapter_of(2),
        only(adapter_of(3), "layers.0.self_attn.q_proj"),  # what others had in its place is gone
        only(adapter_of(4), "up_proj", "v_proj"),
        adapter_of(5),
    ):
        table.check_serves(table.publish(adapter))
    # Those of two versions, and none that was unloaded.
    cards = table.server.ask("GET", "/v1/models")[1]["data"]
    assert {card["id"] for card in cards[1:]} == {"arl-0.4", "arl-0.5"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("interrupt", ["abort", "wait"])
def test_a_request_keeps_its_version_to_its_end(table, interrupt):
    """`abort` ends it, and the rest of the turn has the next version."""
    before = table.publish(adapter_of(20))
    first = asyncio.Event()

    async def turn(prompt: list[int]) -> list[Delta]:
        engine, parts = table.server.client(), []
        try:
            while not parts or parts[-1].finish_reason == "abort":
                done = [token for part in parts for token in part.token_ids]
                part = Delta([], [], [], [])
                async for delta in engine.generate(
                    prompt + done,
                    SamplingParams(300 - len(done)),
                    request_id=f"{prompt[0]}.{len(parts)}",
                    session_id="s",
                    stream=True,
                ):
                    first.set()
                    part = Delta(
                        [*part.token_ids, *delta.token_ids],
                        [*part.logprobs, *delta.logprobs],
                        [*part.versions, *delta.versions],
                        [],
                        delta.finish_reason,
                    )
                parts.append(part)
            return parts
        finally:
            await engine.close()

    async def play() -> list[list[Delta]]:
        async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
            turns = [tasks.create_task(turn(prompt)) for prompt in PROMPTS]
            await first.wait()
            await asyncio.to_thread(table.publish, adapter_of(21), interrupt=interrupt)
        return [it.result() for it in turns]

    for prompt, parts in zip(PROMPTS, asyncio.run(play()), strict=True):
        versions = [part.versions[0] for part in parts if part.token_ids]
        assert versions[0] == before
        assert versions in ([before], [before, before + 1])
        assert len(versions) == 1 or interrupt == "abort"
        assert table.gap(prompt, [part for part in parts if part.token_ids]) < 1e-4
    table.check_serves(before + 1)


REASONS = {**{said: said.strip() for said in DAMAGE}, "takes no other weights": "are no adapter"}
REASONS |= {"rank 12": "with rank 12 is incompatible"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("said", DAMAGE)
def test_a_bad_adapter_leaves_the_old_one(table, said):
    version = table.publish(adapter_of(30))
    adapter = adapter_of(31)
    DAMAGE[said](adapter)
    with pytest.raises(WeightsError, match=REASONS[said].replace("(", r"\(")):
        table.publish(adapter)
    table.check_serves(version)


@pytest.mark.timeout(900)
def test_an_adapter_of_the_client_serves_exactly(table, tmp_path):
    version = next(table.numbers)
    for seed in (40, 41):  # the second replaces the first under the same name
        table.weights[version] = dict(merged(adapter_of(seed), BUNDLED))
        (tmp_path / str(seed)).mkdir()
        path = write_version(tmp_path / str(seed), version, adapter_of(seed))

        async def take(path: Path = path) -> None:
            engine = table.server.client()
            try:
                await engine.update_weights(str(path), version=version)
            finally:
                await engine.close()

        asyncio.run(take())
        table.check_serves(version)
