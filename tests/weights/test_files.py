from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentgym_rl.core import ConfigError, WeightsError, tensor_heads
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.storage.weights_folder import INDEX
from agentgym_rl.weights import (
    PartsWriter,
    SharedFiles,
    StoredVersion,
    copy_version,
    files,
    fingerprint,
    kinds_of,
    new_folder,
    opened_version,
    plan_parts,
    whole_units,
    write_index,
    write_version,
)
from agentgym_rl.weights.files import prune, stored_versions
from agentgym_rl.weights.version_folder import Version
from tests.kit.cases import cases
from tests.kit.versions import part_of, read_version

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 4),
}


class Slow:
    """A file whose every call lets other threads go first."""

    def __init__(self, file):
        self.file = file

    def seek(self, *place):
        time.sleep(0.01)
        return self.file.seek(*place)

    def read(self, size):
        time.sleep(0.01)
        return self.file.read(size)


def test_threads_read_one_version_without_mixing_its_bytes(tmp_path, monkeypatch):
    """A publication has a thread for each server."""
    path = write_version(tmp_path, 7, TENSORS)
    read: Any = files.read_header
    monkeypatch.setattr(files, "read_header", lambda file, opened: read(file, Slow(opened)))
    with closing(StoredVersion(path)) as version, ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: dict(version), range(4)))
    assert all(fingerprint(one) == fingerprint(TENSORS) for one in found)


def test_a_version_comes_back_bit_for_bit(tmp_path):
    tied = {**TENSORS, "tied": TENSORS["a"], "strided": TENSORS["a"].T}
    path = write_version(tmp_path, 7, tied)
    assert path.name == "v7"
    assert [p.name for p in tmp_path.iterdir()] == ["v7"]
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
    assert stat.S_IMODE(part_of(path).stat().st_mode) == mode
    assert stat.S_IMODE((path / INDEX).stat().st_mode) == mode


def label_of(path: Path) -> str:
    with opened_version(path) as version:
        return version.label


def test_labels_and_names_carry_the_incarnation(tmp_path):
    assert label_of(write_version(tmp_path, 7, TENSORS)) == "0.7"
    again = write_version(tmp_path, 7, TENSORS, incarnation=2)
    assert again.name == "v2.7"
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


def odd_dtype(header: dict) -> None:
    header["a"]["dtype"] = "F8_E4M3"


DAMAGE = {
    "truncated": truncated,
    "header only": header_only,
    "empty": nothing,
    "zeros": not_safetensors,
    "one bit": flipped_bit,
    "longer": longer,
    "another name": edited_header(rename),
    "another shape": edited_header(reshape),
    "another dtype": edited_header(odd_dtype),
}


@cases("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_part_is_refused_by_name(tmp_path, damage):
    path = write_version(tmp_path, 1, TENSORS)
    part = part_of(path)
    part.write_bytes(damage(part.read_bytes()))
    with pytest.raises(WeightsError, match=r"v1/model-00001-of-00001\.safetensors"):
        read_version(path)


def edited_index(change: Callable[[dict], None]) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        index = json.loads(data)
        change(index)
        return json.dumps(index).encode()

    return edit


INDEX_DAMAGE = {
    "truncated": (truncated, "missing, truncated or damaged"),
    "empty": (nothing, "missing, truncated or damaged"),
    "a label": (edited_index(lambda it: it["metadata"].update(label="0.2")), "was changed"),
    "a digest": (edited_index(lambda it: it["digests"].update(a="0" * 16)), "was changed"),
    "an age": (edited_index(lambda it: it["since"].update(a=0)), "was changed"),
    "no digests": (edited_index(lambda it: it.pop("metadata")), "carry no digests"),
}


@cases("damage, said", INDEX_DAMAGE.values(), ids=INDEX_DAMAGE.keys())
def test_a_damaged_index_is_refused(tmp_path, damage, said):
    path = write_version(tmp_path, 1, TENSORS)
    (path / INDEX).write_bytes(damage((path / INDEX).read_bytes()))
    with pytest.raises(WeightsError, match=rf"v1.*{said}"):
        read_version(path)


def test_missing_and_foreign_folders_are_refused(tmp_path):
    with pytest.raises(WeightsError, match="missing"):
        read_version(tmp_path / "v1")
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {}}))
    with pytest.raises(WeightsError, match="not written by write_version"):
        read_version(tmp_path)


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
    assert [p.name for p in removed] == ["v8", "v9"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "lock",
        "v1.9",
        "v10",
    ]


def test_a_version_that_is_read_is_pruned_later(tmp_path: Path):
    path = write_version(tmp_path, 1, TENSORS)
    with opened_version(path) as found:
        assert prune(tmp_path, 0) == []
        assert torch.equal(found["a"], TENSORS["a"])
    assert prune(tmp_path, 0) == [path]
    assert list(tmp_path.iterdir()) == []


def flip(path: Path) -> None:
    part_of(path).write_bytes(flipped_bit(part_of(path).read_bytes()))


def test_damage_is_found_although_the_tensor_was_not_asked_for(tmp_path):
    path = write_version(tmp_path, 1, {"a": torch.ones(4), "z": torch.ones(8)})
    flip(path)
    with pytest.raises(WeightsError, match="damaged: z has digest"), opened_version(path) as found:
        assert found["a"].tolist() == [1.0] * 4


def test_what_a_reader_has_already_is_not_read(tmp_path):
    path = write_version(tmp_path, 1, {"a": torch.ones(4), "z": torch.ones(8)})
    flip(path)
    with opened_version(path) as found:
        found.known = {"z"}
        assert found["a"].tolist() == [1.0] * 4


def test_a_damaged_tensor_is_not_given_to_the_reader(tmp_path):
    path = write_version(tmp_path, 1, {"a": torch.ones(4), "z": torch.ones(8)})
    flip(path)
    stored = StoredVersion(path)
    assert len(stored["a"]) == 4
    with pytest.raises(WeightsError, match="damaged: z has digest"):
        stored["z"]


def test_the_error_of_a_reader_is_its_own(tmp_path):
    path = write_version(tmp_path, 1, TENSORS)
    flip(path)
    with pytest.raises(ConfigError, match=r"^its own$"), opened_version(path):
        raise ConfigError("its own")


def test_a_part_that_is_cut_short_while_it_is_read_is_refused(tmp_path):
    path = write_version(tmp_path, 1, LARGE)
    with contextlib.suppress(WeightsError), opened_version(path) as found:
        assert len(found["b"]) == 7
        os.truncate(part_of(path), 1_000)
        with pytest.raises(WeightsError, match="cut short in a"):
            found["a"]


LARGE = {"a": torch.arange(50_000.0), "b": torch.ones(7, dtype=torch.bfloat16)}
SMALL = {"a": torch.zeros(9)}


@cases("first, then", [(LARGE, SMALL), (SMALL, LARGE), (LARGE, LARGE)])
def test_a_version_is_written_over_an_older_one(tmp_path, first, then):
    old = write_version(tmp_path, 1, first)
    inode = part_of(old).stat().st_ino
    path = write_version(tmp_path, 2, then, over=old)
    assert [it.name for it in tmp_path.iterdir()] == ["v2"]
    assert part_of(path).stat().st_ino == inode
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


def test_a_copy_of_a_version_by_links_is_not_written_over(tmp_path):
    old = write_version(tmp_path, 1, TENSORS)
    copy_version(old, tmp_path / "due")
    assert part_of(tmp_path / "due").samefile(part_of(old))
    write_version(tmp_path, 2, LARGE, over=old)
    assert torch.equal(read_version(tmp_path / "due")["a"], TENSORS["a"])


def test_a_version_that_is_written_over_cannot_be_opened(tmp_path):
    path = write_version(tmp_path, 1, TENSORS)
    with (path / INDEX).open("rb") as file:
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
    part = part_of(path)
    part.write_bytes(edited_header(lambda it: it["a"].update(data_offsets=bad))(part.read_bytes()))
    with pytest.raises(WeightsError, match=r"v1/model"):
        read_version(path)


def test_no_more_versions_than_wanted_are_in_the_folder(tmp_path):
    """The one that is written included: its memory is that of the oldest."""
    transport = SharedFiles(tmp_path, keep=3)
    for version in range(7):
        transport.prepare(version, {"a": torch.full((9,), float(version))})
        assert len(list(tmp_path.iterdir())) == min(version + 1, 3)
        transport.tidy()
    names = [f"v{version}" for version in (4, 5, 6)]
    assert [path.name for path in stored_versions(tmp_path)] == names
    for version, name in zip((4, 5, 6), names, strict=True):
        assert read_version(tmp_path / name)["a"][0] == version


def test_the_version_that_engines_serve_stays_while_the_next_is_written(tmp_path):
    transport = SharedFiles(tmp_path, keep=1)
    transport.prepare(1, SMALL)
    transport.prepare(2, LARGE)
    assert read_version(tmp_path / "v1")["a"].equal(SMALL["a"])
    transport.tidy()
    assert [path.name for path in tmp_path.iterdir()] == ["v2"]


def test_a_version_that_equals_the_last_is_not_written_over_while_one_name_is_needed(tmp_path):
    transport = SharedFiles(tmp_path, keep=2)
    transport.prepare(1, SMALL)
    transport.prepare(2, SMALL)
    assert part_of(tmp_path / "v1").samefile(part_of(tmp_path / "v2"))
    transport.prepare(3, LARGE)
    assert read_version(tmp_path / "v2")["a"].equal(SMALL["a"])


# ------------------------------------------------------------------ parts

WIDE = {
    f"layer.{n}": torch.randn(1000, generator=torch.Generator().manual_seed(n)) for n in range(9)
}
NARROW = {name: tensor.bfloat16() for name, tensor in WIDE.items()}


def in_parts(folder: Path, version: int, tensors, *, limit: int, writers=(0,), previous=None):
    """A version that several writers wrote."""
    kinds = kinds_of(tensors)
    plan = plan_parts([{name: kind} for name, kind in kinds.items()], writers=writers, limit=limit)
    named = Version(number=version, sequence="s")
    digests, changed = {}, []
    with new_folder(folder / f"v{version}") as (part, _):
        for writer in writers:
            own = [n for n, owner in zip(tensors, plan.owners, strict=True) if owner == writer]
            with closing(PartsWriter(part, plan.parts[writer], previous=previous)) as parts:
                for name in reversed(own):
                    parts.write(name, tensors[name])
                parts.finish()
            digests |= parts.digests
            changed += parts.changed
        before = StoredVersion(previous) if previous else None
        write_index(part, plan, named, digests=digests, changed=changed, previous=before)
    return folder / f"v{version}"


@cases("tensors", [WIDE, NARROW, WIDE | {"layer.0": NARROW["layer.0"]}])
@cases("writers", [(0,), (0, 1), (0, 2, 5)])
def test_parts_are_bounded_and_say_the_same_whoever_wrote_them(tmp_path, tensors, writers):
    path = in_parts(tmp_path, 1, tensors, limit=9000, writers=writers)
    files = sorted(path.glob("*.safetensors"))
    assert len(files) >= max(2, len(writers))
    assert max(file.stat().st_size for file in files) < 9000 + 1000
    found = read_version(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    stored = StoredVersion(path)
    assert fingerprint(stored) == fingerprint(tensors) == fingerprint(found)
    assert stored.total_size == sum(tensor.nbytes for tensor in tensors.values())
    assert tensor_heads(path).keys() == tensors.keys()


def test_writers_get_equal_shares():
    plan = plan_parts([{n: k} for n, k in kinds_of(WIDE).items()], writers=(0, 1, 2), limit=4000)
    assert [plan.owners.count(writer) for writer in (0, 1, 2)] == [3, 3, 3]


def test_a_tensor_larger_than_a_part_has_one_of_its_own(tmp_path):
    path = in_parts(tmp_path, 1, {**SMALL, "b": torch.ones(5000)}, limit=100)
    assert len(list(path.glob("*.safetensors"))) == 2


def test_only_what_changed_is_written_and_named(tmp_path):
    first = in_parts(tmp_path, 1, WIDE, limit=9000)
    changed = {**WIDE, "layer.1": WIDE["layer.1"] + 1}
    second = in_parts(tmp_path, 2, changed, limit=9000, previous=first)
    again = in_parts(tmp_path, 3, changed, limit=9000, previous=second)
    found = read_version(second)
    assert all(torch.equal(found[name], changed[name]) for name in changed)
    files = sorted(it.name for it in second.glob("*.safetensors"))
    linked = [(second / name).samefile(first / name) for name in files]
    assert linked == [False, True, True, True, True]
    assert all((second / name).samefile(again / name) for name in files)
    stored = StoredVersion(again)
    assert stored.unchanged_since("s", 1) == WIDE.keys() - {"layer.1"}
    assert stored.unchanged_since("s", 2) == WIDE.keys()
    for sequence, version in (("other", 2), ("", 2), ("s", 0), ("s", 4)):
        assert stored.unchanged_since(sequence, version) == set()


@cases("change", [lambda it: it[:500], lambda it: it.bfloat16(), lambda it: it.reshape(10, 100)])
def test_another_kind_of_tensor_is_written_whole(tmp_path, change):
    first = in_parts(tmp_path, 1, WIDE, limit=9000)
    other = {name: change(tensor) for name, tensor in WIDE.items()}
    found = read_version(in_parts(tmp_path, 2, other, limit=9000, previous=first))
    assert all(torch.equal(found[name], other[name]) for name in other)


def test_a_copy_links_what_the_copy_before_has(tmp_path):
    (tmp_path / "there").mkdir()
    first = in_parts(tmp_path, 1, WIDE, limit=9000)
    second = in_parts(tmp_path, 2, {**WIDE, "layer.1": WIDE["layer.2"]}, limit=9000, previous=first)
    copies = tmp_path / "there" / "v-1", tmp_path / "there" / "v-2"
    copy_version(first, copies[0])
    copy_version(second, copies[1], previous=(first, copies[0]))
    assert read_version(copies[1])["layer.1"].equal(WIDE["layer.2"])
    assert label_of(copies[1]) == "0.2"


def test_unchanged_units_are_whole_blocks():
    same = {"model.layers.0.q", "model.layers.0.k", "model.layers.1.q", "model.norm.weight"}
    others = {"model.layers.1.k", "model.norm.bias", "lm_head.weight"}
    assert whole_units({*same, *others}, same) == {"model.layers.0.q", "model.layers.0.k"}


def test_a_folder_is_a_model_that_transformers_loads(tmp_path):
    state = load_file(BUNDLED / "model.safetensors")
    path = write_version(tmp_path, 1, {n: t + 1 for n, t in state.items()})
    shutil.copyfile(BUNDLED / "config.json", path / "config.json")
    loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    assert all(torch.equal(loaded[name], tensor + 1) for name, tensor in state.items())
