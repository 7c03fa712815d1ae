from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agentgym_rl.core.errors import WeightsError
from agentgym_rl.weights.files import prune, read_label, read_version, write_version
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


def test_labels_and_names_carry_the_incarnation(tmp_path):
    assert read_label(write_version(tmp_path, 7, TENSORS)) == "0.7"
    again = write_version(tmp_path, 7, TENSORS, incarnation=2)
    assert again.name == "v2.7.safetensors"
    assert read_label(again) == "2.7"


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
    with pytest.raises(WeightsError, match="no version label"):
        read_label(tmp_path / "other.safetensors")


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


def test_a_mapped_version_outlives_its_file(tmp_path: Path):
    path = write_version(tmp_path, 1, TENSORS)
    found = read_version(path)
    prune(tmp_path, 0)
    assert torch.equal(found["a"], TENSORS["a"])
