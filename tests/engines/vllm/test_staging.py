"""Versions in shared memory are staged where they are: each worker would have its own copy."""

from __future__ import annotations

import importlib
import itertools
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from arl_vllm.staging import Loaded, Staging, lock_pages, mapped, shapes_of

from agentgym_rl.core import WeightsError
from agentgym_rl.storage import WeightsFolder
from agentgym_rl.weights import StoredVersion, write_version
from agentgym_rl.weights.files import take
from tests.kit.damage import FILES
from tests.kit.versions import part_of

_SIZE = 1 << 22
TENSORS = {f"layers.{at}.weight": torch.full((_SIZE,), float(at)) for at in range(4)}


@pytest.fixture
def version(request):
    with WeightsFolder(f"test-staging-{request.node.name[:40]}", need_bytes=1 << 28) as folder:
        yield write_version(folder, 3, TENSORS)


def _own_bytes() -> int:
    """Return the memory of this process that no other shares."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def _staged(version: Path, *, own: list[str] | None = None) -> Staging:
    def load() -> Loaded:
        loaded = Loaded({}, own=own)
        loaded.tensors.update(mapped(version, TENSORS.keys(), loaded.hold))
        return loaded

    return Staging(load, path="a version", expected=shapes_of(TENSORS))


def test_a_staged_version_takes_no_memory_and_stays_until_it_is_released(version):
    before = _own_bytes()
    staging = _staged(version, own=["layers.1.weight"])
    tensors = staging.result(timeout_s=60).tensors
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    assert _own_bytes() - before < 4 * _SIZE  # one of four tensors, for a check
    assert not take(version, version.with_name("v4"))
    staging.release()
    staging.release()
    assert take(version, version.with_name("v4"))


def test_a_version_that_is_released_while_it_is_staged_is_free_afterwards(version):
    mapping, go_on = threading.Event(), threading.Event()

    def load() -> Loaded:
        loaded = Loaded({})
        loaded.tensors.update(mapped(version, TENSORS.keys(), loaded.hold))
        mapping.set()
        go_on.wait(60)
        return loaded

    staging = Staging(load, path="a version", expected=None)
    mapping.wait(60)
    staging.release()
    assert not take(version, version.with_name("v4"))
    go_on.set()
    staging.result(timeout_s=60)
    assert take(version, version.with_name("v4"))


def test_a_version_that_fails_its_check_is_free(version):
    damaged = {**TENSORS, "layers.0.weight": torch.full((_SIZE,), torch.nan)}
    bad = write_version(version.parent, 5, damaged)
    staging = _staged(bad)
    with pytest.raises(WeightsError, match=r"layers\.0\.weight"):
        staging.result(timeout_s=60)
    assert take(bad, bad.with_name("v6"))


def test_a_worker_checks_only_its_own_part(version):
    damaged = {**TENSORS, "layers.0.weight": torch.full((_SIZE,), torch.nan)}
    bad = write_version(version.parent, 5, damaged)
    staging = _staged(bad, own=["layers.1.weight"])
    assert staging.result(timeout_s=60).own == ["layers.1.weight"]
    staging.release()


def test_a_version_that_is_not_there_cannot_be_mapped(tmp_path):
    with ExitStack() as hold, pytest.raises(WeightsError):
        mapped(tmp_path / "v9", (), hold)


class _Transfer:
    """As vLLM's WeightTransferEngine, without its requests."""

    __class_getitem__ = classmethod(lambda cls, _: cls)

    def __init__(self) -> None:
        self.model_config = types.SimpleNamespace(model="/nowhere")


@pytest.fixture
def transfer(monkeypatch):
    """The backend arl-shm of the second of two workers, without vLLM."""
    parts = {
        "vllm.distributed.parallel_state": {
            "get_world_group": lambda: types.SimpleNamespace(rank=1, world_size=2)
        },
        "vllm.distributed.weight_transfer.base": {
            "WeightTransferEngine": _Transfer,
            "WeightTransferInitInfo": object,
            "WeightTransferUpdateInfo": object,
        },
        "arl_vllm.swap": dict.fromkeys(
            ("loaded_adapter", "serves_adapter", "swap_adapter", "swap_weights")
        ),
    }
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer", *parts):
        module = types.ModuleType(name)
        vars(module).update(parts.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "arl_vllm.transfer", raising=False)
    module = importlib.import_module("arl_vllm.transfer")
    monkeypatch.delitem(sys.modules, "arl_vllm.transfer")
    backend = module.SharedMemoryTransfer()
    backend.device = torch.device("cpu")
    return backend, module.UpdateInfo


@pytest.mark.parametrize("damage", FILES.values(), ids=FILES.keys())
def test_a_version_with_a_damaged_file_is_refused_and_free(version, transfer, damage):
    backend, info = transfer
    damage(part_of(version))
    with pytest.raises(WeightsError):
        backend.load(info(path=str(version)))
    assert take(version, version.with_name("v4"))


def test_a_worker_reads_its_own_part_once_and_holds_the_version(version, transfer, monkeypatch):
    backend, info = transfer
    read, found = [], StoredVersion._tensor
    monkeypatch.setattr(StoredVersion, "_tensor", lambda it, n: read.append(n) or found(it, n))
    loaded = backend.load(info(path=str(version)))
    assert sorted(read) == sorted(loaded.own) == ["layers.1.weight", "layers.3.weight"]
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in TENSORS.items())
    assert not take(version, version.with_name("v4"))
    loaded.hold.close()
    assert take(version, version.with_name("v4"))


class FakeCuda:
    """The functions of the CUDA runtime that lock pages: the ranges that are locked."""

    device: torch.device | None = None
    """The current device of this thread, where it is set."""

    def __init__(self, most: int = 99) -> None:
        self.locked: dict[int, int] = {}
        self._most = most

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        self.device = device
        yield
        self.device = None

    def cudaHostRegister(self, start: int, size: int, flags: int) -> int:
        assert self.device == torch.device("cuda:3")
        if len(self.locked) == self._most:
            return 2
        assert start not in self.locked
        assert flags == 8
        self.locked[start] = size
        return 0

    def cudaHostUnregister(self, start: int) -> int:
        self.locked.pop(start)
        return 0


@pytest.mark.parametrize("most", [99, 0])
def test_pages_under_staged_tensors_are_locked_until_they_are_released(version, monkeypatch, most):
    cuda = FakeCuda(most)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device", cuda.on)
    with ExitStack() as hold:
        tensors = list(mapped(version, TENSORS.keys(), hold).values())
        lock_pages(tensors, hold, device=torch.device("cuda:3"))
        ranges = [range(start, start + size) for start, size in cuda.locked.items()]
        assert all(any(t.data_ptr() in it for it in ranges) for t in tensors) == (most > 0)
        for one, other in itertools.pairwise(sorted(ranges, key=lambda it: it.start)):
            assert one.stop <= other.start
    assert not cuda.locked
