"""`arl bench all`: results kept one by one, and what is made of them."""

import json
import os
import sys

import pytest

from benchmarks import _common, _formatting, _html, _kept, _measurements, _tables
from benchmarks import all as whole
from benchmarks._faulty import unmeasured

GOOD = """
def run():
    return {"name": "good", "hardware": "two <cores>", "versions": {"torch": "2"}, "goal": "2x",
            "rows": [{"system": "ours", "per_s": 2000.5}, {"system": "<b>peer</b>", "per_s": 1}],
            "ratios": {"ours / peer": 2.0}, "met": {"fast": True, "small": False}}
"""
BAD = "def run():\n    raise SystemExit('no such <thing>')\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Two benchmarks of our own, which `arl bench` finds as it finds those of the checkout."""
    found = {"good": GOOD, "bad": BAD}
    (tmp_path / "benchmarks").mkdir()
    for name, text in found.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
    (tmp_path / "agentgym_rl").symlink_to(_kept.ROOT / "agentgym_rl")
    monkeypatch.setattr(_kept, "ROOT", tmp_path)
    monkeypatch.setattr(whole, "JOBS", tuple(_kept.Job(name, name) for name in found))
    monkeypatch.setenv("ARL_BENCH_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, *sys.path))))
    return tmp_path


def test_peers_are_found_beside_this_environment_or_where_a_variable_says(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.delenv("ARL_GEM_PYTHON", raising=False)
    assert _common.peer_python("gem") == ""
    assert "make bench-peers" in _common.no_peer("gem")
    beside = tmp_path / "venv-gem"
    beside.mkdir()
    assert _common.peer_python("gem") == ""  # its installation has not ended
    (beside / ".installed").touch()
    assert _common.peer_python("gem") == str(beside / "bin" / "python")
    monkeypatch.setenv("ARL_GEM_PYTHON", "/another/python")
    assert _common.peer_python("gem") == "/another/python"


def test_one_that_fails_is_a_line_of_the_report(checkout):
    report = whole.run()
    assert report["failed"] == ["bad"]
    assert [row["name"] for row in report["rows"]] == ["good", "bad"]
    page = (checkout / "out" / "report.html").read_text()
    assert "Not met: small." in page
    assert "No result" in page
    assert "two &lt;cores&gt;" in page
    assert "<b>peer" not in page
    assert "http" not in page


def test_what_is_kept_is_not_measured_again(checkout, capfd, monkeypatch):
    whole.run()
    file = checkout / "out" / "good.json"
    kept = json.loads(file.read_text()) | {"seconds": 77.0}
    file.write_text(json.dumps(kept))
    monkeypatch.setenv("ARL_BENCH_ONLY", "good")
    assert whole.run()["rows"][0]["seconds"] == 77.0
    assert "kept from before" in capfd.readouterr().err
    monkeypatch.setenv("ARL_BENCH_AGAIN", "1")
    assert whole.run()["rows"][0]["seconds"] != 77.0


def test_an_unknown_name_is_refused(monkeypatch):
    monkeypatch.setenv("ARL_BENCH_ONLY", "enw")
    with pytest.raises(SystemExit, match="no enw; there are env, math"):
        whole.run()


def test_every_benchmark_is_in_it():
    files = {file.stem for file in (_kept.ROOT / "benchmarks").glob("[!_]*.py")} - {"all"}
    assert {job.benchmark for job in whole.JOBS} == files


def test_the_page_of_measurements_is_what_template_and_data_give():
    found = _kept.read(_measurements.KEPT, [job.name for job in whole.JOBS])
    assert _measurements.PAGE.read_text() == _measurements.text(found)


def test_faults_are_counted_from_their_rows():
    row = {"fault": "ray: engine killed", **unmeasured(), "tokens_sampled_again": 0}
    row |= {"detected_s": 0.5, "full_speed_s": 9.0, "groups_lost": 1}
    ended = {"fault": row["fault"], **unmeasured(), "error": "it ended"}
    rows = [row, row | {"detected_s": None, "full_speed_s": 3.0}, ended]
    table = _measurements.faults(rows).splitlines()
    assert table[2:] == [
        "| engine killed | Ray | 3, 1 failed | 0.5, 0.5 | 6.0, 9.0 | 2 | 0 | 0 | 0 |"
    ]


def test_text_of_a_result_cannot_leave_its_cell():
    kept = _kept.Kept("x", "arl bench x", "2026-11-23", 1.0, (0.0, 0.0), {"ratios": {"a|b": 2.0}})
    assert "a\\|b 2" in _measurements.overview([kept])
    assert "&lt;script&gt;" in _html.page([_kept.Kept("<script>", "", "", 0.0, (0.0, 0.0), {})])


def test_a_grid_has_the_rows_that_have_its_last_column():
    rows = [{"of": {"a": 1}, "b": 0.12345}, {"of": {"a": 2}}, {"b": 1000.4}]
    table = _tables.Grid({"inside": "of.a", "last": "b"}).text(rows)
    assert table.splitlines() == ["| inside | last |", "|---|---|", "| 1 | 0.123 |", "|  | 1,000 |"]


def test_a_pivot_has_a_column_for_each_value():
    rows = [{"who": "us|", "at": 1, "s": 2}, {"who": "them", "at": 8, "s": 3}, {"who": "none"}]
    table = _tables.Pivot(["who"], ["at"], ["s"]).text(rows)
    assert table.splitlines()[0] == "| who | 1 | 8 |"
    assert table.splitlines()[2:] == ["| us\\| | 2 |  |", "| them |  | 3 |"]


def test_what_came_of_it_is_said_with_what_was_left_out():
    result = {"goal": {"s": 1}, "met": {"s": False}, "figures": {"s": 2}, "skipped": ["x: no x"]}
    assert _formatting.outcome(result) == "Goal: s 1. Not met: s. Measured: s 2. Skipped: x: no x."
