"""Checkpoints without a trainer: the manifest as it is read again, and which ones are kept."""

import json
from pathlib import Path

import pytest

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import TrainerError
from agentgym_rl.storage import (
    MANIFEST,
    EvalRecord,
    EvalRecords,
    Manifest,
    Retention,
    best_checkpoint,
    checksums,
    newest_checkpoint,
    read_manifest,
)
from agentgym_rl.storage.checkpoints import check_whole, list_checkpoints, prune


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


def test_the_newest_and_the_best_stay(tmp_path):
    rewards = {1: 0.9, 2: 0.1, 3: 0.8, 4: None, 5: 0.2}
    manifests = {
        tmp_path / f"step-{step}": Manifest(step, step, "", 1, {}, metrics={"r": reward})
        for step, reward in rewards.items()
    }

    def kept(**asked) -> list[int]:
        gone = Retention(**asked).to_remove(manifests, {})
        return [manifests[path].step for path in manifests if path not in gone]

    assert kept(keep=1, keep_best=0, best_metric="r") == [5]
    assert kept(keep=1, keep_best=2, best_metric="r") == [1, 3, 5]
    assert kept(keep=2, keep_best=1, best_metric="-r") == [2, 4, 5]
    assert kept(keep=1, keep_best=3, best_metric="unknown") == [5]


def test_a_checkpoint_stays_until_its_evaluation_has_come(tmp_path):
    records, folder = EvalRecords(tmp_path), tmp_path / "checkpoints"
    retention = Retention(keep=1, keep_best=1, best_metric="eval/reward")
    for step in range(1, 6):
        (folder / f"step-{step}").mkdir(parents=True)
        manifest = {"step": step, "version": step, "config_hash": "", "num_ranks": 1}
        manifest |= {"libraries": {}, "parameters": f"hash{step}"}
        (folder / f"step-{step}" / "manifest.json").write_text(json.dumps(manifest))

    def judged(step: int, reward: float, parameters: str) -> None:
        metrics = {"eval/reward": reward}
        records.write(EvalRecord(step, parameters, "done", metrics=metrics))
        prune(folder, retention)

    def left() -> list[int]:
        return [int(path.name[5:]) for path in list_checkpoints(folder)]

    for step in (1, 2, 3):
        records.write(EvalRecord(step, f"hash{step}"))
    prune(folder, retention)
    assert left() == [1, 2, 3, 5]
    judged(3, 0.2, "hash3")
    assert left() == [1, 2, 3, 5]
    judged(1, 0.9, "of other weights")
    assert left() == [2, 3, 5]
    judged(2, 0.5, "hash2")
    assert left() == [2, 5]
    best = best_checkpoint(folder, retention)
    assert best is not None
    assert (best.checkpoint.name, best.value) == ("step-2", 0.5)
