"""Notes and tags of runs: written on the page, kept in the run's folder, listed by `arl runs`."""

from __future__ import annotations

import json
import os

import pytest
from arl_inspect.notes import Notes, notes_of, write_notes
from made_runs import make_client

from agentgym_rl.cli import main as cli
from agentgym_rl.core import ConfigError
from agentgym_rl.storage.run_list import summary
from tests.kit.cases import cases

HOSTILE = "<script>window.hacked=1</script>"
URL = "/api/runs/first/notes"
JSON = {"content-type": "application/json"}


def put(client, content, *, url=URL):
    status, body = client.raw(url, method="PUT", body=json.dumps(content).encode())
    return status, json.loads(body)


def test_notes_are_written_and_listed(run, monkeypatch, capsys):
    client = make_client(run.parent, JSON)
    given = {
        "notes": f"the second try\n{HOSTILE}",
        "tags": [" base  line ", "ü#%", "ü#%", "", "\x1b[1m"],
    }
    written = {"notes": given["notes"], "tags": ["base line", "ü#%", "[1m"]}
    assert put(client, given) == (200, written)
    assert json.loads((run / "notes.json").read_text()) == written
    (found,) = client("/api/runs")["runs"]
    assert {name: found[name] for name in written} == written
    assert [path.name for path in run.iterdir() if "notes" in path.name] == ["notes.json"]
    monkeypatch.chdir(run.parent.parent)
    with pytest.raises(SystemExit):
        cli.main(["runs"])
    assert "runs/first: tags: base line, ü#%, [1m" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["runs", "--json"])
    assert json.loads(capsys.readouterr().out)["runs"][0]["tags"] == written["tags"]


def test_a_note_does_not_make_a_run_younger(run):
    before = summary(run).updated_s
    write_notes(run, Notes("later"))
    os.utime(run / "notes.json", (before + 60, before + 60))
    assert summary(run).updated_s == before


@cases(
    "content, said",
    [
        ([], "an object like"),
        ({"note": "x"}, "an object like"),
        ({"notes": 3}, "10,000 characters"),
        ({"notes": "x" * 10_001}, "10,000 characters"),
        ({"tags": "x"}, "a list of 20 texts"),
        ({"tags": ["x"] * 21}, "a list of 20 texts"),
        ({"tags": [3]}, "3 is not a text of 40"),
        ({"tags": ["x" * 41]}, "40 characters at most"),
        ({"notes": "x" * 200_000}, "notes are too long"),
    ],
)
def test_what_is_no_note_is_refused(run, content, said):
    status, found = put(make_client(run.parent, JSON), content)
    assert (status, said in found["error"]) == (400, True), found
    assert not (run / "notes.json").exists()


def test_who_may_not_write_is_refused(run):
    given = {"notes": "x"}
    assert put(make_client(run.parent, JSON, read_only=True), given)[0] == 403
    assert make_client(run.parent, read_only=True)("/api/runs")["can_write"] is False
    assert put(make_client(run.parent, JSON | {"origin": "http://evil.example"}), given)[0] == 403
    assert put(make_client(run.parent, JSON | {"origin": "null"}), given)[0] == 403
    assert put(make_client(run.parent, JSON | {"host": "evil.example"}), given)[0] == 400
    assert put(make_client(run.parent, JSON, token="secret"), given)[0] == 401
    assert put(make_client(run.parent, {"content-type": "text/plain"}), given)[0] == 400
    client = make_client(run.parent, JSON)
    assert put(client, given, url="/api/runs/second/notes")[0] == 404
    assert put(client, given, url="/api/runs/first/config")[0] == 400
    assert client.raw(URL, method="PUT", body=b"no JSON")[0] == 400
    assert not (run / "notes.json").exists()
    assert put(make_client(run.parent, JSON | {"origin": "http://127.0.0.1:80"}), given)[0] == 200


def test_notes_that_cannot_be_read_or_written_are_reported(run, monkeypatch, capsys):
    (run / "notes.json").write_text("no JSON")
    client = make_client(run.parent)
    (found,) = client("/api/runs")["runs"]
    assert "notes.json cannot be read" in found["error"]
    with pytest.raises(ConfigError, match=r"notes\.json cannot be read"):
        notes_of(run)
    monkeypatch.chdir(run.parent.parent)
    with pytest.raises(SystemExit):
        cli.main(["runs"])
    assert "notes.json cannot be read" in capsys.readouterr().out
    (run / "notes.json").unlink()
    (run / "notes.json").mkdir()
    (run / "notes.json" / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_notes(run, Notes("x"))
    (run / "config.toml").unlink()
    with pytest.raises(ConfigError, match="does not hold a run"):
        write_notes(run, Notes("x"))
