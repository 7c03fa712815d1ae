"""Files of rows: every way to write them, and every way to break them."""

import json
import re
import sys
from pathlib import Path

import pytest
from arl_data.formats import files_of, open_file
from arl_envs.code.rows import row_tasks

from agentgym_rl.core import ConfigError, install_command
from tests.kit.cases import cases

from .rows_kit import sums, write_lines

ROWS = [{"a": 1, "text": "é\u2028"}, {"a": 2, "nested": {"b": [None, 1.5]}}]


def lines(*, end: str = "\n") -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in ROWS).encode()


@cases(
    "name, data",
    [
        ("plain.jsonl", lines()),
        ("open_end.jsonl", lines()[:-1]),
        ("bom.jsonl", b"\xef\xbb\xbf" + lines()),
        ("crlf.jsonl", lines(end="\r\n")),
        ("blank.jsonl", b"\n  \n" + lines(end="\n\n\n")),
        ("lines.json", lines()),
        ("list.json", json.dumps(ROWS).encode()),
        (
            "pretty.json",
            b"\xef\xbb\xbf\n" + json.dumps(ROWS, indent=2, ensure_ascii=False).encode(),
        ),
    ],
)
def test_rows_are_read_in_order_and_found_again(tmp_path: Path, name: str, data: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    reader = open_file(file)
    found = list(reader)
    assert [item.row for item in found] == ROWS
    assert [reader.at(item.place) for item in reversed(found)] == ROWS[::-1]


@cases(
    "name, data, said",
    [
        ("cut.jsonl", lines()[:-9], r"cut\.jsonl, line 2: not JSON: .*cut off"),
        ("bad.jsonl", lines() + b"{]\n" + lines(), r"bad\.jsonl, line 3: not JSON"),
        ("other.jsonl", lines() + b"[1]\n", r"line 3: got list, expected a row"),
        ("bytes.jsonl", lines() + b'{"a": "\xff"}\n', r"line 3: not JSON: .*utf-8"),
        ("deep.jsonl", lines() + b"[" * 99999 + b"\n", r"line 3: not JSON"),
        ("cut.json", json.dumps(ROWS, indent=0).encode()[:-9], r"begins in line 6: .*cut off"),
        ("end.json", json.dumps(ROWS).encode()[:-1], r"expected ',' or ']'; has the file been cut"),
        ("more.json", json.dumps(ROWS).encode() + b"[]", r"more after the end"),
        ("other.json", b"[1]", r"row 1: got int, expected a row"),
        ("bytes.json", b'[\n"\xff"]', r"bytes\.json, line 2: not UTF-8"),
        ("empty.jsonl", b"\n", r"no rows"),
        ("empty.json", b"[]", r"no rows"),
    ],
)
def test_malformed_files_say_where(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        row_tasks("train", path=str(tmp_path / name), format="deepcoder")


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_text("a,b")
    with pytest.raises(ConfigError, match=r"\.jsonl, \.json or \.parquet, not '\.xlsx'"):
        row_tasks("train", path=str(tmp_path / "rows.xlsx"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no file, and no pattern that fits any"):
        row_tasks("train", path=str(tmp_path / "*.jsonl"))
    with pytest.raises(ConfigError, match=r"name the files of rows: none ends in \.csv, \.tsv"):
        row_tasks("train", path=str(tmp_path))
    (tmp_path / "rows.parquet").touch()
    with pytest.raises(ConfigError, match=r"name the files: .*/\*\.parquet"):
        row_tasks("train", path=str(tmp_path))
    with pytest.raises(ConfigError, match=r"fits any; did you mean rows\.parquet\?"):
        row_tasks("train", path=str(tmp_path / "row.parquet"))


def test_a_pattern_names_several_files(tmp_path: Path) -> None:
    for i in range(3):
        write_lines(tmp_path / f"part-{i}.jsonl", sums(2 * i, 2 * i + 1))
    assert len(files_of(str(tmp_path / "part-[01].jsonl"))) == 2
    assert len(row_tasks("train", path=str(tmp_path / "*.jsonl"), eval_fraction=0)) == 6


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", sums(1, 2))
    tasks = row_tasks("train", path=path, eval_fraction=0)
    write_lines(tmp_path / "rows.jsonl", sums(1, 2, 3))
    with pytest.raises(ConfigError, match="has changed"):
        tasks[0]
    assert len(row_tasks("train", path=path, eval_fraction=0)) == 3


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra hf")
    import pyarrow.parquet as parquet

    file = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(sums(*range(7))), file, row_group_size=3)
    reader = open_file(file)
    found = list(reader)
    assert [item.row for item in found] == sums(*range(7))
    assert [reader.at(item.place) for item in found] == sums(*range(7))
    assert len(row_tasks("train", path=str(file), eval_fraction=0)) == 7
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="no parquet file, or cut off"):
        row_tasks("train", path=str(file))


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=re.escape(install_command("hf"))):
        row_tasks("train", path=str(tmp_path / "rows.parquet"))
