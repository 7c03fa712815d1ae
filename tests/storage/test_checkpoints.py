"""Checkpoints without a trainer: the manifest as it is read again, and which ones are kept."""

import json
from pathlib import Path

import pytest

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.storage.checkpoints import (
    MANIFEST,
    Manifest,
    Retention,
    best_checkpoint,
    check_whole,
    checksums,
    newest_checkpoint,
    prune,
    read_manifest,
)


def save(folder: Path, step: int, **metrics: float) -> Path:
    """Write a checkpoint with one file, and the manifest with its own checksum."""
    path = folder / "checkpoints" / f"step-{step}"
    path.mkdir(parents=True)
    (path / "model").write_bytes(bytes([step] * 10))
    sums = checksums([path / "model"])
    manifest = Manifest(step, step, "", 1, {}, metrics=metrics, files={"model": 10}, checksums=sums)
    (path / MANIFEST).write_text(manifest.sealed())
    return path


def test_a_manifest_is_read_as_it_was_written_and_damage_is_noticed(tmp_path):
    first, second = save(tmp_path, 1, loss=0.5), save(tmp_path, 2)
    found = read_manifest(first)
    assert (found.step, found.metrics, found.files) == (1, {"loss": 0.5}, {"model": 10})
    assert check_whole(first) == found
    (second / MANIFEST).write_text(
        (second / MANIFEST).read_text().replace('"step": 2', '"step": 3')
    )
    with pytest.raises(TrainerError, match=r"manifest\.json is not what was written"):
        read_manifest(second)
    assert newest_checkpoint(tmp_path / "checkpoints") == first
    (first / "model").write_bytes(bytes(10))
    assert read_manifest(first) == found  # of files only sizes are compared
    with pytest.raises(TrainerError, match="model is not what was written"):
        check_whole(first)
    (first / "model").write_bytes(bytes(9))
    with pytest.raises(TrainerError, match="model has 9 bytes, its manifest says 10"):
        read_manifest(first)


def test_a_manifest_without_a_seal_is_of_an_earlier_release(tmp_path):
    path = save(tmp_path, 4)
    head = json.loads((path / MANIFEST).read_text())
    del head["checksum"]
    (path / MANIFEST).write_text(json.dumps(head))
    assert check_whole(path).step == 4


def test_the_configured_checkpoints_are_kept(tmp_path):
    trainer = TrainerConfig(keep_checkpoints=1, keep_best=1, best_metric="-loss")
    retention = Retention.of(trainer)
    paths = [save(tmp_path, step, loss=loss) for step, loss in enumerate((3.0, 1.0, 2.0, 4.0))]
    best = best_checkpoint(tmp_path / "checkpoints", retention)
    assert best is not None
    assert (best.checkpoint, best.version, best.metric, best.value) == (paths[1], 1, "-loss", 1.0)
    prune(tmp_path / "checkpoints", retention)
    assert [path for path in paths if path.exists()] == [paths[1], paths[3]]
