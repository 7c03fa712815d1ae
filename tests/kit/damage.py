"""One table of the ways in which a publication goes wrong, for every kind of engine: the old or the
new weights serve afterwards, never parts of both.

The proof is a sample: each token's log-prob is that of transformers' forward under the weights of
the version that the engine reports. tests/weights, tests/vllm and tests/sglang run the table.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from arl_gloo.transport import Broadcasts
from arl_sglang.in_pauses import InPauses
from torch import Tensor

from agentgym_rl.core import UNKNOWN_VERSION, Interrupt, SamplingParams, WeightsError
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.weights import (
    Publisher,
    RemoteEngine,
    SharedFiles,
    Transport,
    recognized,
)
from tests.kit.publishing import publish_now
from tests.kit.versions import part_of
from tests.vllm.plain import PlainForward, weights_of, worst_difference

Tensors = dict[str, Tensor]
NORM, DOWN = "model.norm.weight", "model.layers.2.mlp.down_proj.weight"
PROMPTS = [[5, 80, 33, 210, 7], list(range(10, 60))]
TOKENS = 16


def _narrow(tensors: Tensors) -> None:
    tensors[DOWN] = tensors[DOWN][:, :100].contiguous()


def _not_finite(tensors: Tensors) -> None:
    tensors[DOWN] = tensors[DOWN].clone()
    tensors[DOWN][3, 5] = float("nan")


def _infinite(tensors: Tensors) -> None:
    tensors[NORM] = torch.full_like(tensors[NORM], float("inf"))


def _wrong_model(tensors: Tensors) -> None:
    for name in list(tensors):
        if ".layers.3." in name:
            del tensors[name]


TENSORS: Mapping[str, tuple[Callable[[Tensors], object], str]] = {
    "a tensor is missing": (lambda it: it.pop(DOWN), DOWN),
    "a tensor is narrower": (_narrow, DOWN),
    "a tensor has NaN": (_not_finite, f"{DOWN} has values that are not finite"),
    "a tensor is infinite": (_infinite, f"{NORM} has values that are not finite"),
    "a tensor is too much": (lambda it: it.update({"model.extra": torch.zeros(3)}), "model.extra"),
    "another model": (_wrong_model, r"model\.layers\.3\."),
}
"""The damage of the tensors themselves, for every transport; and a part of the reason given."""


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)


FILES: Mapping[str, Callable[[Path], object]] = {
    "the file is cut short": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "the file has a flipped bit": _flip,
    "the file is gone": Path.unlink,
    "the file is no safetensors file": lambda path: path.write_bytes(b"nothing of this kind"),
}
"""The damage of the file, for the transport shm."""

DEATHS: Mapping[str, Sequence[str]] = {
    "vllm": ("/update_weights", "/pause", "/finish_weight_update", "/resume"),
    "shm": (
        *("/pause_generation", "/update_weight_version", "/update_weights_from_disk"),
        *("/weights_checker", "/continue_generation"),
    ),
    "gloo": ("/begin_weight_update", "/end_weight_update", "/continue_generation"),
    "ipc": ("/update_weights_from_tensor", "/end_weight_update", "/continue_generation"),
}
"""The requests before which the trainer dies: to vLLM's routes, and to SGLang by its transport."""


class _Died(BaseException):
    """The death of the trainer: nothing handles it, and no request follows."""


@dataclass
class Matrix:
    """The table, over an engine at `url`; `make_client` gives a client of it."""

    url: str
    folder: Path
    make_client: Callable[[], Any]
    transport: str = "shm"
    interrupt: Interrupt = "recompute"
    polls_staging: bool = False
    forward: PlainForward = field(default_factory=PlainForward)
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    weights: dict[int, Tensors] = field(default_factory=dict)
    """The good versions so far."""

    def publish(
        self, tensors: Tensors | None = None, *, damage: Any = None, others: Sequence[str] = ()
    ) -> int:
        """Publish a version, by default a good one, as a trainer that has just started; return its
        number. The URLs `others` are of more engines."""
        version = next(self.numbers)
        self.weights[version] = weights_of(version) if tensors is None else tensors
        transport = self._transport()
        publisher = Publisher(
            recognize=recognized,
            transport=transport,
            interrupt=self.interrupt,
            timeout_s=60,
            polls_staging=self.polls_staging,
        )
        try:
            publisher.prepare(version, self.weights[version])
            if damage is not None:
                assert isinstance(transport, SharedFiles)
                damage(part_of(transport.path))
            urls = {"engine": self.url} | {f"other-{n}": it for n, it in enumerate(others)}
            assert "engine" in publish_now(publisher, urls, version).served
        finally:
            publisher.close()
        return version

    def _transport(self) -> Transport:
        if self.transport == "shm":
            return SharedFiles(self.folder, model_dir=BUNDLED)
        if self.transport == "gloo":
            return Broadcasts(timeout_s=30, model_dir=BUNDLED)
        return InPauses("ipc", model_dir=BUNDLED)

    async def sampled(self, client: Any) -> int:
        """Sample; check each token against the version that the engine reports; return the
        version."""
        found: set[int] = set()
        for number, prompt in enumerate(PROMPTS):
            ids, logprobs, versions = [], [], []
            name = f"damage-{next(self.numbers)}-{number}"
            sampling = SamplingParams(max_tokens=TOKENS)
            async for delta in client.generate(
                prompt, sampling, request_id=name, session_id=name, cache_salt=name
            ):
                ids += delta.token_ids
                logprobs += delta.logprobs
                versions += delta.versions
            gap = worst_difference(
                self.forward, prompt, ids, logprobs, versions, weights=self.weights
            )
            assert gap < 1e-4, f"the tokens of version {set(versions)} are {gap} nats off"
            found |= set(versions)
        [version] = found
        return version

    def serves(self) -> int:
        """Return the version that serves, proven by a sample; -2 for an engine that has none and
        must not be resumed, else resumed as a fleet does after the trainer's death."""

        async def ask() -> int:
            client = self.make_client()
            try:
                async with asyncio.timeout(240):
                    served = await client.served_version()
                    if served == UNKNOWN_VERSION:
                        return served
                    await client.resume()
                    sampled = await self.sampled(client)
                    assert sampled == served
                    return sampled
            finally:
                await client.close()

        return asyncio.run(ask())

    def check_tensors(self, case: str) -> None:
        """Check that damaged tensors are refused with the reason, and that the old version serves
        on."""
        damage, why = TENSORS[case]
        good = self.publish()
        tensors = weights_of(next(self.numbers))
        damage(tensors)
        with pytest.raises(WeightsError, match=why):
            self.publish(tensors)
        assert self.serves() == good
        self._recovers()

    def check_file(self, case: str) -> None:
        """Check that a damaged file is refused, and that the old version serves on."""
        good = self.publish()
        with pytest.raises(WeightsError, match=r"v\d+\b"):
            self.publish(damage=FILES[case])
        assert self.serves() == good
        self._recovers()

    def check_death(self, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Check the death of the trainer before a request: the old or the new version serves, or
        none does until the next publication."""
        good = self.publish()
        send = RemoteEngine._request

        def dies(engine: RemoteEngine, method: str, path: str, *rest: Any) -> Any:
            if path.partition("?")[0] == before:
                raise _Died(before)
            return send(engine, method, path, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(RemoteEngine, "_request", dies)
            with suppress(WeightsError), pytest.raises(_Died):
                self.publish()
        new = max(self.weights)
        served = self.serves()
        assert served in (good, new, UNKNOWN_VERSION)
        self._recovers()

    def _recovers(self) -> None:
        version = self.publish()
        assert self.serves() == version
