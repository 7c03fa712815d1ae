"""Files of what training made of tokens: whole or not there, and told apart."""

import numpy as np
import pytest

from agentgym_rl.core import ConfigError, Row, StorageError
from agentgym_rl.storage import trained_tokens
from agentgym_rl.storage.trained_tokens import forget_tokens, read_tokens, row_key, write_tokens


def row(start_s: float, trained: int = 2) -> Row:
    sampled = np.arange(4) >= 4 - trained
    return Row(
        tokens=np.arange(4, dtype=np.int32),
        loss_mask=sampled,
        behavior_logprobs=np.full(4, -1, np.float32),
        policy_versions=np.where(sampled, 0, -1).astype(np.int32),
        admitted_versions=np.where(sampled, 0, -1).astype(np.int32),
        temperatures=np.ones(4, np.float32),
        turn_ids=np.where(sampled, 0, -1).astype(np.int32),
        times_s=np.where(sampled, start_s + np.arange(4), 0.0),
    )


def write(run, rows, *, step=3, rank=0, of=0.5):
    values = np.arange(sum(it.num_trained for it in rows)) + np.float32(of)
    write_tokens(run, step=step, rank=rank, rows=rows, proximal=-values, advantages=values)


def test_what_ranks_wrote_is_read_together(tmp_path):
    rows = [row(1.0), row(2.0, trained=3), row(3.0)]
    write(tmp_path, rows[:2])
    write(tmp_path, rows[2:], rank=1, of=9)
    write(tmp_path, [row(1.0)], step=4)
    write(tmp_path, [], step=5)
    found = read_tokens(tmp_path, 3)
    assert {key: advantages.tolist() for key, (_, advantages) in found.items()} == {
        row_key(rows[0]): [0.5, 1.5],
        row_key(rows[1]): [2.5, 3.5, 4.5],
        row_key(rows[2]): [9, 10],
    }
    assert all((proximal == -advantages).all() for proximal, advantages in found.values())
    assert read_tokens(tmp_path, 5) == read_tokens(tmp_path, 6) == {}


def test_a_step_that_is_trained_again_leaves_nothing_of_before(tmp_path):
    for step in (2, 3, 4):
        for rank in (0, 1):
            write(tmp_path, [row(1.0)], step=step, rank=rank)
    (tmp_path / "tokens" / "step-000004.rank-2.part").touch()  # that rank was killed
    forget_tokens(tmp_path, from_step=3)
    names = sorted(path.name for path in (tmp_path / "tokens").iterdir())
    assert names == ["step-000002.rank-0.npz", "step-000002.rank-1.npz"]
    forget_tokens(tmp_path / "nowhere", from_step=0)


def test_a_full_disk_leaves_no_part(tmp_path, monkeypatch):
    write(tmp_path, [row(1.0)])

    def full(file, **arrays) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trained_tokens.np, "savez", full)
    with pytest.raises(StorageError, match=r"step-000003\.rank-0\.npz cannot be written.*No space"):
        write(tmp_path, [row(2.0)])
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["step-000003.rank-0.npz"]
    assert list(read_tokens(tmp_path, 3)) == [row_key(row(1.0))]


def test_a_foreign_file_is_explained(tmp_path):
    write(tmp_path, [row(1.0)])
    (tmp_path / "tokens" / "step-000003.rank-7.npz").write_bytes(b"not of ours")
    with pytest.raises(ConfigError, match=r"rank-7\.npz is no file of tokens"):
        read_tokens(tmp_path, 3)
