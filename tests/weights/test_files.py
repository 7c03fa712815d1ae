from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agentgym_rl.core.errors import ConfigError, WeightsError
from agentgym_rl.weights.files import (
    opened_version,
    prune,
    read_version,
    stored_versions,
    write_version,
)
from agentgym_rl.weights.transport import SharedFiles
from tests.kit.cases import cases

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 4),
}


def test_a_version_comes_back_bit_for_bit(tmp_path):
    tied = {**TENSORS, "tied": TENSORS["a"], "strided": TENSORS["a"].T}
    path = write_version(tmp_path, 7, tied)
    assert path.name == "v7.safetensors"
    assert [p.name for p in tmp_path.iterdir()] == ["v7.safetensors"]
    found = read_version(path)
    assert found.keys() == tied.keys()
    assert all(torch.equal(found[k], tied[k]) and found[k].dtype == tied[k].dtype for k in tied)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_version_has_the_mode_of_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        path = write_version(tmp_path, 7, TENSORS)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def label_of(path: Path) -> str:
    with opened_version(path) as version:
        return version.label


def test_labels_and_names_carry_the_incarnation(tmp_path):
    assert label_of(write_version(tmp_path, 7, TENSORS)) == "0.7"
    again = write_version(tmp_path, 7, TENSORS, incarnation=2)
    assert again.name == "v2.7.safetensors"
    assert label_of(again) == "2.7"


def truncated(data: bytes) -> bytes:
    return data[:-1]


def header_only(data: bytes) -> bytes:
    return data[: 8 + struct.unpack("<Q", data[:8])[0]]


def nothing(data: bytes) -> bytes:
    return b""


def not_safetensors(data: bytes) -> bytes:
    return b"\x00" * len(data)


def flipped_bit(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def longer(data: bytes) -> bytes:
    return data + b"x"


def edited_header(change: Callable[[dict], None]) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + size :]

    return edit


def rename(header: dict) -> None:
    header["z"] = header.pop("a")


def reshape(header: dict) -> None:
    header["a"]["shape"] = [3, 2]


def forget_checksum(header: dict) -> None:
    del header["__metadata__"]["crc32"]


DAMAGE = {
    "truncated": truncated,
    "header only": header_only,
    "empty": nothing,
    "zeros": not_safetensors,
    "one bit": flipped_bit,
    "longer": longer,
    "another name": edited_header(rename),
    "another shape": edited_header(reshape),
    "no checksum": edited_header(forget_checksum),
}


@cases("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    path = write_version(tmp_path, 1, TENSORS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(WeightsError, match=r"v1\.safetensors"):
        read_version(path)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(WeightsError, match="missing"):
        read_version(tmp_path / "v1.safetensors")
    save_file({"a": TENSORS["a"]}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match="no checksum"):
        read_version(tmp_path / "other.safetensors")


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    with pytest.raises(WeightsError, match="version 1"):
        write_version(tmp_path / "nowhere", 1, TENSORS)
    with pytest.raises(WeightsError, match="version 2"):
        write_version(tmp_path, 2, {"x": torch.zeros(2, device="meta")})
    assert list(tmp_path.iterdir()) == []


def test_prune_keeps_the_newest(tmp_path):
    for version in (8, 9, 10):
        write_version(tmp_path, version, {})
    write_version(tmp_path, 9, {}, incarnation=1)
    (tmp_path / "lock").touch()
    removed = prune(tmp_path, 2)
    assert [p.name for p in removed] == ["v8.safetensors", "v9.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "lock",
        "v1.9.safetensors",
        "v10.safetensors",
    ]


def test_an_opened_version_outlives_its_file(tmp_path: Path):
    path = write_version(tmp_path, 1, TENSORS)
    with opened_version(path) as found:
        prune(tmp_path, 0)
        assert torch.equal(found["a"], TENSORS["a"])


def flip(path: Path) -> None:
    path.write_bytes(flipped_bit(path.read_bytes()))


def test_damage_is_found_although_the_tensor_was_not_asked_for(tmp_path):
    path = write_version(tmp_path, 1, {"a": torch.ones(4), "z": torch.ones(8)})
    flip(path)
    with pytest.raises(WeightsError, match="damaged: crc32"), opened_version(path) as found:
        assert found["a"].tolist() == [1.0] * 4


def test_damage_is_found_although_the_tensor_was_not_kept(tmp_path):
    path = write_version(tmp_path, 1, {"a": torch.ones(4), "z": torch.ones(8)})
    flip(path)
    with pytest.raises(WeightsError, match="damaged: crc32"), opened_version(path) as found:
        assert [len(found[name]) for name in found] == [4, 8]


def test_the_error_of_a_reader_is_its_own(tmp_path):
    path = write_version(tmp_path, 1, TENSORS)
    flip(path)
    with pytest.raises(ConfigError, match=r"^its own$"), opened_version(path):
        raise ConfigError("its own")


def test_a_file_that_is_cut_short_while_it_is_read_is_refused(tmp_path):
    path = write_version(tmp_path, 1, LARGE)
    with contextlib.suppress(WeightsError), opened_version(path) as found:
        os.truncate(path, 1_000)
        with pytest.raises(WeightsError, match="cut short in a"):
            found["a"]


LARGE = {"a": torch.arange(50_000.0), "b": torch.ones(7, dtype=torch.bfloat16)}
SMALL = {"a": torch.zeros(9)}


@cases("first, then", [(LARGE, SMALL), (SMALL, LARGE), (LARGE, LARGE)])
def test_a_version_is_written_over_an_older_one(tmp_path, first, then):
    old = write_version(tmp_path, 1, first)
    inode = old.stat().st_ino
    path = write_version(tmp_path, 2, then, over=old)
    assert [it.name for it in tmp_path.iterdir()] == ["v2.safetensors"]
    assert path.stat().st_ino == inode
    found = read_version(path)
    assert all(torch.equal(found[name], then[name]) for name in then)
    assert found.keys() == then.keys()
    assert label_of(path) == "0.2"


def test_a_version_that_is_read_is_not_written_over(tmp_path):
    old = write_version(tmp_path, 1, TENSORS)
    with opened_version(old) as found:
        write_version(tmp_path, 2, LARGE, over=old)
        assert torch.equal(found["a"], TENSORS["a"])
    assert torch.equal(read_version(old)["a"], TENSORS["a"])


def test_a_version_with_a_second_name_is_not_written_over(tmp_path):
    old = write_version(tmp_path, 1, TENSORS)
    (tmp_path / "due").hardlink_to(old)
    write_version(tmp_path, 2, LARGE, over=old)
    assert torch.equal(read_version(tmp_path / "due")["a"], TENSORS["a"])


def test_a_version_that_is_written_over_cannot_be_opened(tmp_path):
    path = write_version(tmp_path, 1, TENSORS)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(WeightsError, match="is being replaced"):
            read_version(path)


def test_a_version_that_was_written_over_since_it_was_found_is_missing(tmp_path, monkeypatch):
    path = write_version(tmp_path, 1, TENSORS)
    lock = fcntl.flock

    def late(fd: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH:
            monkeypatch.setattr(fcntl, "flock", lock)
            write_version(tmp_path, 2, LARGE, over=path)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(WeightsError, match="missing"):
        read_version(path)


@cases("bad", [[0, -4], [8, 4], [0, 4_000_000]])
def test_a_header_with_impossible_places_is_refused(tmp_path, bad):
    path = write_version(tmp_path, 1, SMALL)
    path.write_bytes(edited_header(lambda it: it["a"].update(data_offsets=bad))(path.read_bytes()))
    with pytest.raises(WeightsError, match=r"v1\.safetensors"):
        read_version(path)


def test_no_more_versions_than_wanted_are_in_the_folder(tmp_path):
    """The one that is written included: its memory is that of the oldest."""
    transport = SharedFiles(tmp_path, keep=3)
    for version in range(7):
        transport.prepare(version, {"a": torch.full((9,), float(version))})
        assert len(list(tmp_path.iterdir())) == min(version + 1, 3)
        transport.tidy()
    names = [f"v{version}.safetensors" for version in (4, 5, 6)]
    assert [path.name for path in stored_versions(tmp_path)] == names
    for version, name in zip((4, 5, 6), names, strict=True):
        assert read_version(tmp_path / name)["a"][0] == version


def test_the_version_that_engines_serve_stays_while_the_next_is_written(tmp_path):
    transport = SharedFiles(tmp_path, keep=1)
    transport.prepare(1, SMALL)
    transport.prepare(2, LARGE)
    assert read_version(tmp_path / "v1.safetensors")["a"].equal(SMALL["a"])
    transport.tidy()
    assert [path.name for path in tmp_path.iterdir()] == ["v2.safetensors"]


def test_a_version_that_equals_the_last_is_not_written_over_while_one_name_is_needed(tmp_path):
    transport = SharedFiles(tmp_path, keep=2)
    transport.prepare(1, SMALL)
    transport.prepare_same(2)
    transport.prepare(3, LARGE)
    assert read_version(tmp_path / "v2.safetensors")["a"].equal(SMALL["a"])
