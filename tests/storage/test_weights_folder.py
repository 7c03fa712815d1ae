from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from agentgym_rl.core import WeightsError
from agentgym_rl.core.model_folder import Stored
from agentgym_rl.storage import WeightsFolder, weights_folder
from agentgym_rl.storage.weights_folder import check_fits, remove_dead
from tests.kit.cases import cases

HOLDER = """
import sys
from pathlib import Path
from agentgym_rl.storage.weights_folder import WeightsFolder
with WeightsFolder(sys.argv[2], root=Path(sys.argv[1])) as folder:
    (folder / "v1").write_bytes(b"weights")
    assert "torch" not in sys.modules
    print("ready", flush=True)
    sys.stdin.read()
"""


def start_holder(root: Path, run_id: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root), run_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_folder_lives_as_long_as_the_run(tmp_path):
    with WeightsFolder("mine", root=tmp_path) as folder:
        assert folder == tmp_path / "arl-mine"
        (folder / "v1").touch()
        (folder / "more").mkdir()
    assert list(tmp_path.iterdir()) == []


def test_a_living_neighbour_is_left_alone_and_a_dead_one_removed(tmp_path):
    living, killed = start_holder(tmp_path, "living"), start_holder(tmp_path, "killed")
    killed.kill()
    killed.communicate(timeout=60)
    with WeightsFolder("mine", root=tmp_path):
        assert sorted(p.name for p in tmp_path.iterdir()) == ["arl-living", "arl-mine"]
        assert (tmp_path / "arl-living" / "v1").read_bytes() == b"weights"
    living.communicate(timeout=60)
    assert living.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_an_id_in_use_is_refused(tmp_path):
    with WeightsFolder("twin", root=tmp_path) as folder:
        (folder / "v1").touch()
        with pytest.raises(WeightsError, match="a living run has this id"):
            WeightsFolder("twin", root=tmp_path).__enter__()
        assert sorted(p.name for p in folder.iterdir()) == ["lock", "v1"]
        assert [p.name for p in tmp_path.iterdir()] == ["arl-twin"]


def test_a_dead_runs_id_may_be_used_again(tmp_path):
    killed = start_holder(tmp_path, "again")
    killed.kill()
    killed.communicate(timeout=60)
    with WeightsFolder("again", root=tmp_path) as folder:
        assert [p.name for p in folder.iterdir()] == ["lock"]


def test_a_root_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(WeightsError, match=r"nowhere/arl-mine: .*No such file"):
        WeightsFolder("mine", root=tmp_path / "nowhere").__enter__()


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / "arl-notes").mkdir()
    (tmp_path / "arl-notes" / "text").touch()
    (tmp_path / "arl-file").touch()
    (tmp_path / "target").mkdir()
    (tmp_path / "arl-link").symlink_to(tmp_path / "target")
    assert remove_dead(tmp_path) == []
    assert (tmp_path / "arl-notes" / "text").exists()
    assert (tmp_path / "arl-link").is_symlink()


def test_an_empty_folder_of_a_dead_run_is_removed_and_one_that_is_being_made_stays(tmp_path):
    (tmp_path / "arl-empty").mkdir()
    (tmp_path / ".arl-new-x").mkdir()
    assert remove_dead(tmp_path) == [tmp_path / "arl-empty"]
    assert [path.name for path in tmp_path.iterdir()] == [".arl-new-x"]


def test_scarce_shared_memory_falls_back_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        caplog.at_level(logging.WARNING),
        WeightsFolder(f"huge-{os.getpid()}", need_bytes=1 << 60) as folder,
    ):
        assert folder.parent == tmp_path
    assert "weights need" in caplog.text


def test_without_shared_memory_it_falls_back_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(weights_folder, "SHARED_MEMORY", tmp_path / "shm")
    with WeightsFolder("mine") as folder:
        assert folder == tmp_path / "arl-mine"
    assert "no shared memory at" in caplog.text
    (tmp_path / "shm").mkdir()
    with WeightsFolder("mine") as folder:
        assert folder == tmp_path / "shm" / "arl-mine"


@cases("run_id", ["", "a/b", "..", "a b", "x" * 300])
def test_an_id_must_be_a_plain_name(run_id):
    with pytest.raises(ValueError, match="plain name"):
        WeightsFolder(run_id)


def test_the_body_may_fail(tmp_path):
    with pytest.raises(KeyError), WeightsFolder("mine", root=tmp_path):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


VALUES = {
    "F64": (np.float64, np.inf, np.finfo(np.float64).max),
    "F32": (np.float32, -np.inf, np.finfo(np.float32).min),
    "F16": (np.float16, np.nan, np.finfo(np.float16).max),
    "BF16": (np.uint16, 0x7F80, 0x7F7F),
}
"""For each dtype: that of its bits, a number that is not finite, and the largest that is."""


def checked(folder: Path, dtype: str, values: np.ndarray) -> bool:
    tensor = Stored(dtype, values.shape, values.view(np.uint8))
    return check_fits(["a"], lambda name: tensor, folder, what="weights v7")


@cases("dtype", VALUES)
def test_a_value_that_is_not_finite_is_found_wherever_it_is(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(weights_folder, "_AT_ONCE", 4)
    kind, bad, largest = VALUES[dtype]
    save_file({"a": np.zeros(9, np.float32)}, tmp_path / "model.safetensors")
    values = np.full(9, largest, kind)
    assert not checked(tmp_path, dtype, values)
    for place in range(9):
        wrong = values.copy()
        wrong[place] = bad
        with pytest.raises(WeightsError, match="weights v7: a has values that are not finite"):
            checked(tmp_path, dtype, wrong)


def test_numbers_without_an_exponent_are_finite_and_of_models_with_such(tmp_path):
    whole = np.full(3, -1, np.int64)
    save_file({"a": whole}, tmp_path / "model.safetensors")
    assert not checked(tmp_path, "I64", whole)
    with pytest.raises(WeightsError, match="weights v7: a is F32, the model has I64"):
        checked(tmp_path, "F32", np.zeros(3, np.float32))
