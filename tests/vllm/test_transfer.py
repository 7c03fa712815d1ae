"""Weights into a real vLLM server: the new ones serve exactly, or the old ones go on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from arl_gloo.broadcast import BroadcastGroup
from arl_lora.keys import LoraConfig
from torch import Tensor

from agentgym_rl.cluster import free_port
from agentgym_rl.core import base_checksum
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.weights import fingerprint, write_version
from agentgym_rl.weights.adapter import merged, named
from tests.kit.versions import part_of

from .conftest import running
from .plain import PlainForward, weights_of, worst_difference

UPDATE = "/update_weights"
DISCARD = {"update_info": {"discard": True}}
PROMPTS = [[5, 80, 33, 210, 7], [400, 12, 639, 3], list(range(10, 60))]
VERSIONS = itertools.count(1)


def begin(server, tensors: Mapping[str, Tensor], folder: Path) -> Path:
    """Start an update with a file of `tensors`."""
    path = write_version(folder, next(VERSIONS), tensors)
    server.post("/start_weight_update")
    server.post(UPDATE, {"update_info": {"path": str(path)}})
    return path


def finish(server) -> str:
    """Swap what is staged, in a pause; the label it then serves."""
    assert server.staging()["state"] == "ready", server.staging()
    label = f"0.{next(VERSIONS)}"
    server.post("/pause?mode=keep&clear_cache=true")
    server.post("/finish_weight_update", {"weight_version": label})
    server.post("/resume")
    return label


def worst_gap(server, tensors: Mapping[str, Tensor], label: str) -> float:
    """Largest |log-prob - that of a plain forward of `tensors`| over sampled tokens, in nats."""
    forward, worst = PlainForward(), 0.0
    for prompt in PROMPTS:
        choice = server.sample(prompt, max_tokens=24)
        assert choice["weight_versions"] == [{"version": label, "start": 0, "end": 24}]
        reported = [token["logprob"] for token in choice["logprobs"]["content"]]
        ids, only = choice["token_ids"], {0: tensors}
        gap = worst_difference(forward, prompt, ids, reported, [0] * 24, weights=only)
        worst = max(worst, gap)
    return worst


@pytest.fixture(scope="module")
def server(vllm_server, tmp_path_factory):
    vllm_server.post("/init_weight_transfer_engine", {"init_info": {}})
    yield vllm_server
    begin(vllm_server, weights_of(0), tmp_path_factory.mktemp("restored"))
    finish(vllm_server)


@pytest.fixture
def good(server, tmp_path) -> tuple[str, dict[str, Tensor]]:
    """A version that serves: what must still serve after a failed update."""
    tensors = weights_of(1)
    begin(server, tensors, tmp_path)
    return finish(server), tensors


def test_new_weights_serve_exactly_tied_head_included(server, tmp_path):
    for seed in (2, 3):
        tensors = weights_of(seed)
        begin(server, tensors, tmp_path)
        label = finish(server)
        assert server.version == label
        assert worst_gap(server, tensors, label) < 1e-4


def test_staged_weights_no_longer_need_their_file(server, tmp_path):
    path = begin(server, weights_of(9), tmp_path)
    assert server.staging()["state"] == "ready"
    part_of(path).write_bytes(b"")  # reading a mapping of it would now be a bus error
    assert worst_gap(server, weights_of(9), finish(server)) < 1e-4


def test_bfloat16_weights_are_cast(server, tmp_path):
    tensors = {name: tensor.bfloat16() for name, tensor in weights_of(4).items()}
    begin(server, tensors, tmp_path)
    label = finish(server)
    rounded = {name: tensor.float() for name, tensor in tensors.items()}
    assert worst_gap(server, rounded, label) < 1e-4


def check_refused(server, good, why: str, tmp_path: Path) -> None:
    """Staging failed for `why`, the old version serves on, and the next update works."""
    label, tensors = good
    state = server.staging()
    assert state["state"] == "failed"
    assert why in state["error"]
    assert why in server.refused("/finish_weight_update", {"weight_version": "0.0"})
    assert server.version == label
    assert worst_gap(server, tensors, label) < 1e-4
    assert "discarded" in server.refused(UPDATE, DISCARD)
    begin(server, weights_of(5), tmp_path)
    assert worst_gap(server, weights_of(5), finish(server)) < 1e-4


def test_an_abandoned_update_is_discarded(server, good, tmp_path):
    begin(server, weights_of(6), tmp_path)
    assert "already active" in server.refused("/start_weight_update")
    assert "discarded" in server.refused(UPDATE, DISCARD)
    assert server.staging()["state"] == "idle"
    begin(server, weights_of(7), tmp_path)
    assert worst_gap(server, weights_of(7), finish(server)) < 1e-4


def test_finish_without_anything_staged_is_refused(server, good):
    server.post("/start_weight_update")
    assert "nothing is staged" in server.refused("/finish_weight_update")
    server.refused(UPDATE, DISCARD)
    assert server.version == good[0]


def test_sampling_goes_on_while_weights_are_staged(server, good, tmp_path):
    """Requests of two lengths follow each other: one of them at least spans the update."""
    spans: list[list[dict]] = []
    over = Event()

    def sample(length: int) -> None:
        while not over.is_set():
            spans.append(server.sample(PROMPTS[0], max_tokens=length)["weight_versions"])

    threads = [Thread(target=sample, args=[length], daemon=True) for length in (400, 310)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while not running(server.url):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    begin(server, weights_of(8), tmp_path)
    label = finish(server)
    over.set()
    for thread in threads:
        thread.join(timeout=60)
    old, new = next(found for found in spans if len(found) == 2)
    assert (old["version"], new["version"]) == (good[0], label)
    assert old["end"] == new["start"]
    assert new["end"] in (400, 310)


@pytest.mark.parametrize("changed", ["layers.1.mlp.up", "norm.weight", "embed_tokens", "nothing"])
def test_what_did_not_change_is_not_read_and_serves_the_same(server, tmp_path, changed):
    """Bit for bit what the whole version serves: its unchanged blocks may even be damaged."""

    def outputs() -> list[object]:
        found = [server.sample(prompt, max_tokens=12, temperature=0) for prompt in PROMPTS]
        return [(it["token_ids"], it["logprobs"]["content"]) for it in found]

    first, other = weights_of(7), weights_of(8)
    second = {name: other[name] if changed in name else it for name, it in first.items()}
    numbers = [next(VERSIONS) for _ in range(2)]
    one = write_version(tmp_path, numbers[0], first, sequence="s")
    two = write_version(tmp_path, numbers[1], second, sequence="s", previous=one)
    (tmp_path / "alone").mkdir()
    whole = write_version(tmp_path / "alone", numbers[1], second)
    found = []
    for paths in ([one, two], [whole]):
        for path in paths:
            server.post("/start_weight_update")
            server.post(UPDATE, {"update_info": {"path": str(path)}})
            finish(server)
        found.append(outputs())
    assert found[0] == found[1]
    assert worst_gap(server, second, server.version) < 1e-4


# ------------------------------------------------------------------ arl-gloo


class Trainer:
    """Rank 0 of a broadcast group with the one worker of a server."""

    def __init__(self, server, *, timeout_s: float = 20) -> None:
        port = free_port()
        info = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1}
        info |= {"world_size": 2, "timeout_s": timeout_s}
        server.post("/init_weight_transfer_engine", {"init_info": info})
        self.server = server
        self.group = BroadcastGroup(
            address="127.0.0.1", port=port, rank=0, world_size=2, timeout_s=timeout_s
        )

    def begin(self, tensors: Mapping[str, Tensor], *, expected: str = "") -> None:
        info = {
            "names": list(tensors),
            "dtypes": [str(tensor.dtype) for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
            "fingerprint": expected or fingerprint(tensors),
            "path": "broadcast",
        }
        self.server.post("/start_weight_update")
        self.server.post(UPDATE, {"update_info": info})


@pytest.fixture(scope="module")
def gloo_server(start_vllm):
    server = start_vllm(transport="gloo")
    yield server
    server.stop()


@pytest.fixture
def trainer(gloo_server) -> Iterator[Trainer]:
    trainer = Trainer(gloo_server)
    yield trainer
    trainer.group.close()


def test_broadcast_weights_serve_exactly(trainer):
    for seed in (2, 3):
        trainer.begin(weights_of(seed))
        trainer.group.send(weights_of(seed))
        label = finish(trainer.server)
        assert worst_gap(trainer.server, weights_of(seed), label) < 1e-4


def test_a_broadcast_of_other_bytes_leaves_the_old_weights(trainer):
    server, before = trainer.server, trainer.server.version
    trainer.begin(weights_of(4), expected="00000000")
    trainer.group.send(weights_of(4))
    assert "sent was 00000000" in server.staging()["error"]
    assert "sent was 00000000" in server.refused("/finish_weight_update")
    assert server.version == before
    server.refused(UPDATE, DISCARD)
    trainer.begin(weights_of(5))  # the same group
    trainer.group.send(weights_of(5))
    assert worst_gap(server, weights_of(5), finish(server)) < 1e-4


def test_a_trainer_that_dies_before_it_sends_fails_the_staging(trainer):
    server, before = trainer.server, trainer.server.version
    trainer.begin(weights_of(4))
    trainer.group.close()
    assert server.staging()["state"] == "failed"
    server.refused(UPDATE, DISCARD)
    assert server.version == before
    following = Trainer(server)
    following.begin(weights_of(6))
    following.group.send(weights_of(6))
    assert worst_gap(server, weights_of(6), finish(server)) < 1e-4
    following.group.close()


# ------------------------------------------------------------------ adapters


def adapter_of(seed: int, *, base: int | None = None) -> dict[str, Tensor]:
    """A LoRA adapter of rank 4 on some layers of the bundled model, large enough to matter."""
    draw = torch.Generator().manual_seed(seed)
    layers = {n.removesuffix(".weight"): t for n, t in weights_of(0).items() if "proj" in n}
    pairs = {
        name: (
            torch.randn(4, weight.shape[1], generator=draw),
            0.02 * torch.randn(weight.shape[0], 4, generator=draw),
        )
        for name, weight in layers.items()
    }
    return named(pairs, scaling=0.5, base=base_checksum(BUNDLED) if base is None else base)


def test_an_adapter_serves_exactly_as_its_merged_weights(server, tmp_path):
    for seed in (1, 2):  # the second is merged into the base, not into the first
        path = begin(server, adapter_of(seed), tmp_path)
        label = finish(server)
        weights = merged(adapter_of(seed), BUNDLED)
        assert worst_gap(server, weights, label) < 1e-4
        assert path.stat().st_size * 10 < (BUNDLED / "model.safetensors").stat().st_size
    assert worst_gap(server, weights_of(0), label) > 0.1


def test_an_adapter_of_other_weights_leaves_the_old_ones(server, good, tmp_path):
    begin(server, adapter_of(3, base=7), tmp_path)
    check_refused(server, good, "trained on other weights (crc32 00000007)", tmp_path)


def test_a_broadcast_adapter_serves_exactly(trainer):
    trainer.begin(adapter_of(4))
    trainer.group.send(adapter_of(4))
    label = finish(trainer.server)
    assert worst_gap(trainer.server, merged(adapter_of(4), BUNDLED), label) < 1e-4


@pytest.fixture(scope="module")
def beside(start_vllm):
    """A server that computes an adapter beside its base."""
    server = start_vllm(lora=LoraConfig(rank=4, serve="adapter"))
    server.post("/init_weight_transfer_engine", {"init_info": {}})
    yield server
    server.stop()


def test_an_adapter_beside_its_base_serves_exactly(beside, tmp_path):
    assert worst_gap(beside, weights_of(0), "default") < 1e-4  # the first one changes nothing
    for seed in (1, 2):
        begin(beside, adapter_of(seed), tmp_path)
        label = finish(beside)
        assert worst_gap(beside, merged(adapter_of(seed), BUNDLED), label) < 1e-4
    assert worst_gap(beside, weights_of(0), label) > 0.1


def _narrow(adapter: dict[str, Tensor]) -> None:
    name = next(name for name in adapter if ".lora_B." in name)
    adapter[name] = adapter[name][:-1].contiguous()


def _without_b(adapter: dict[str, Tensor]) -> None:
    del adapter[next(name for name in adapter if ".lora_B." in name)]


def _larger(adapter: dict[str, Tensor]) -> None:
    for name, tensor in list(adapter.items()):
        if tensor.ndim == 2:
            dim = int(".lora_B." in name)
            adapter[name] = torch.cat([tensor, tensor, tensor], dim=dim)


DAMAGE = {
    "does not fit": _narrow,
    " does not fit": _without_b,
    "rank 12": _larger,
    "takes no other weights": lambda adapter: (adapter.clear(), adapter.update(weights_of(1))),
    "trained on other weights": lambda adapter: adapter.update(lora_base=torch.tensor(7)),
}


@pytest.mark.parametrize("said", DAMAGE)
def test_a_bad_adapter_leaves_the_old_one(beside, tmp_path, said):
    good = adapter_of(5)
    begin(beside, good, tmp_path)
    label = finish(beside)
    adapter = adapter_of(6)
    DAMAGE[said](adapter)
    begin(beside, adapter, tmp_path)
    state = beside.staging()
    assert (state["state"], said.strip() in state["error"]) == ("failed", True), state
    assert said.strip() in beside.refused("/finish_weight_update")
    beside.refused(UPDATE, DISCARD)
    assert worst_gap(beside, merged(good, BUNDLED), label) < 1e-4
