"""Rows of parquet files: what is kept of them, and what happens when they change."""

import os

import pytest
from arl_data.parquet_file import Recent

from agentgym_rl.core import ConfigError
from agentgym_rl.gym.data import Rows, RowTasks, row_tasks

from .rows_kit import choose

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra hf")
parquet = pytest.importorskip("pyarrow.parquet")


def written(path, *rows: dict) -> RowTasks:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return row_tasks("train", Rows(path=str(path), eval_fraction=0), choose)


@pytest.mark.parametrize("later", [2, 1, 0], ids=["others", "fewer", "none"])
def test_a_file_that_has_changed_is_refused(tmp_path, later):
    path = tmp_path / "rows.parquet"
    tasks = written(path, {"ask": "A", "paid": 1}, {"ask": "B", "paid": 1})
    assert tasks[0].data["row"]["paid"] == 1
    if later:
        written(path, *[{"ask": "A", "paid": 2}, {"ask": "B", "paid": 2}][:later])
        os.utime(path, (1, 1))  # changes within one tick of the clock
    else:
        path.unlink()
    with pytest.raises(ConfigError, match=r"rows\.parquet (has changed|cannot be read any more)"):
        tasks[0]


def table(num_bytes: int):
    return pyarrow.table({"x": pyarrow.array([0] * num_bytes, pyarrow.uint8())})


def test_the_bound_is_one_for_all_files():
    recent = Recent(250)
    for file in "abc":
        recent.add((file, 0), table(100))
        recent.get(("a", 0))
    assert [recent.get((file, 0)) is not None for file in "abc"] == [True, False, True]
    assert recent.size_bytes == 200
    recent.add(("d", 0), table(1000))  # one is always kept
    assert recent.size_bytes == 1000
