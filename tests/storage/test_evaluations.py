"""The records of the versions that a run evaluates."""

from __future__ import annotations

import json

from agentgym_rl.storage import EvalRecord, EvalRecords


def lines(run) -> list[dict]:
    return [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]


def test_records_are_read_by_version_and_those_that_ended_are_lines(tmp_path):
    records = EvalRecords(tmp_path)
    assert records.read() == {}
    done = EvalRecord(10, "hash", "done", metrics={"eval/reward": 0.5})
    failed = EvalRecord(2, "other", "failed", error="no sandbox")
    first = EvalRecord(0, status="done", metrics={"eval/reward": 0.25})
    for record in (done, EvalRecord(3), failed, first):
        records.write(record)
    assert records.read() == {0: first, 2: failed, 3: EvalRecord(3), 10: done}
    assert list(records.read()) == [0, 2, 3, 10]
    assert lines(tmp_path) == [
        {"version": 0, "step": None, "status": "done", "eval/reward": 0.25},
        {"version": 2, "step": 1, "status": "failed", "error": "no sandbox"},
        {"version": 10, "step": 9, "status": "done", "eval/reward": 0.5},
    ]
    records.write(EvalRecord(3, "new", "interrupted"))
    assert records.read()[3].status == "interrupted"
    assert [line["version"] for line in lines(tmp_path)] == [0, 2, 3, 10]


def test_what_belongs_to_other_weights_is_forgotten(tmp_path):
    records = EvalRecords(tmp_path)
    for version in (1, 2):
        for folder in (records.episodes(version), records.weights(version)):
            folder.mkdir(parents=True)
            (folder / "file").touch()
    records.forget(1)
    records.forget(7)
    left = sorted(path.name for path in (tmp_path / "evaluations").iterdir())
    assert left == ["step-2", "weights-2"]


def test_damaged_records_are_removed_and_lost_ones_named(tmp_path, caplog):
    records = EvalRecords(tmp_path)
    records.mend()
    assert list(tmp_path.iterdir()) == []
    records.write(EvalRecord(1, "hash", "done"))
    records.episodes(1).mkdir()
    records.episodes(4).mkdir()
    broken = tmp_path / "evaluations" / "step-2.json"
    broken.write_text('{"version": 2')
    odd = tmp_path / "evaluations" / "step-3.json"
    odd.write_text('{"surprise": 2}')
    (tmp_path / "evaluations.jsonl").write_text("cut")
    assert list(records.read()) == [1]
    records.mend()
    assert not broken.exists()
    assert not odd.exists()
    assert [line["version"] for line in lines(tmp_path)] == [1]
    said = [record.getMessage() for record in caplog.records]
    assert sum("which is damaged" in text for text in said) == 2
    assert [text for text in said if "lost its record" in text] == [
        f"the evaluation in {records.episodes(4)} has lost its record step-4.json"
    ]
