"""The index reads from the newest back, and then only what is new."""

import asyncio
from contextlib import closing

import pytest
from arl_inspect import index as module
from arl_inspect.index import EpisodeIndex
from arl_inspect.query import Query
from made_runs import make_episode, make_run

from agentgym_rl.core import Group, Task
from agentgym_rl.storage import EpisodeLog


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Of 30 episodes, read 4 at a time, and looked at anew every time."""
    for name, value in {"FIRST": 4, "PORTION": 4, "_FIRST_S": 0.0, "_FRESH_S": 0.0}.items():
        monkeypatch.setattr(module, name, value)
    groups = {f"g{k}": [make_episode(f"g{k}-{i}", f"g{k}") for i in range(3)] for k in range(10)}
    return make_run(tmp_path / "run", groups) / "episodes.db"


def ids(index: EpisodeIndex) -> list[str]:
    return [it["id"] for it in index.page(Query())["episodes"]]


def test_the_newest_are_there_first_and_the_rest_follows(log):
    index = EpisodeIndex(log)
    assert ids(index) == ["g9-2", "g9-1", "g9-0", "g8-2"]
    assert not index.facets()["complete"]
    assert index.of("g0-0")["row"] == 1  # older than what was read
    assert [it["id"] for it in index.members("g1")] == ["g1-0", "g1-1", "g1-2"]
    while index.read_more():
        pass
    found = index.page(Query())
    assert (found["total"], found["complete"], len(set(ids(index)))) == (30, True, 30)


def test_what_is_recorded_meanwhile_is_seen(log):
    index = EpisodeIndex(log)
    while index.read_more():
        pass
    with closing(EpisodeLog(log)) as writer:
        asyncio.run(writer.add_member(make_episode("new-0", "new")))
        assert (ids(index)[0], index.of("new-0")["status"]) == ("new-0", "open")
        group = Group("new", "task-new", [make_episode("new-0", "new")])
        asyncio.run(writer.add_group(Task("task-new", 1), 10, group, dropped="filtered"))
        assert (index.of("new-0")["status"], index.of("new-0")["task"]) == ("dropped", "task-new")
    assert index.page(Query())["total"] == 31


def test_another_log_in_its_place_is_read_anew(log, tmp_path):
    index = EpisodeIndex(log)
    while index.read_more():
        pass
    other = make_run(tmp_path / "other", {"x": [make_episode("x-0", "x")]}) / "episodes.db"
    other.replace(log)
    assert ids(index) == ["x-0"]
    log.unlink()
    assert index.page(Query()) == {"total": 0, "episodes": [], "complete": True, "searched": 0}


def said(text: str, **changed):
    messages = [{"role": "user", "content": "how many?"}, {"role": "assistant", "content": text}]
    return {"messages": messages, **changed}


def test_texts_are_searched_from_the_newest_on_also_those_that_come_meanwhile(log, monkeypatch):
    monkeypatch.setattr(module, "_TEXTS", 4)
    index = EpisodeIndex(log)
    found = index.page(Query.of({"q": "hello"}))
    assert (found["total"], found["searched"], found["complete"]) == (4, 4, False)
    while index.read_more():
        pass
    found = index.page(Query.of({"q": "HELLO"}))
    assert (found["total"], found["searched"], found["complete"]) == (30, 30, True)
    with closing(EpisodeLog(log)) as writer:
        asyncio.run(writer.add_member(make_episode("new-0", "new", **said("Forty HELLO two"))))
        assert ids(index)[0] == "new-0"
        assert [it["id"] for it in index.page(Query.of({"q": "two forty"}))["episodes"]] == [
            "new-0"
        ]
        assert index.page(Query.of({"q": '"two forty"'}))["total"] == 0
        assert index.page(Query.of({"q": "hello"}))["total"] == 31


def test_the_expected_answer_comes_with_the_complete_group(log):
    index = EpisodeIndex(log)
    member = make_episode("new-0", "new", **said("41", verdict="wrong"))
    with closing(EpisodeLog(log)) as writer:
        asyncio.run(writer.add_member(member))
        found = index.page(Query())["episodes"][0]
        assert [found[k] for k in ("question", "answer", "expected", "verdict")] == [
            *("how many?", "41", "", "wrong")
        ]
        group = Group("new", "task-new", [member])
        asyncio.run(writer.add_group(Task("task-new", 1, data={"answer": 42}), 10, group))
        assert index.page(Query())["episodes"][0]["expected"] == "42"
        assert index.page(Query.of({"q": "42"}))["total"] == 1, "the task is searched too"


def test_nothing_is_written_beside_the_log(log):
    before = {file: file.stat().st_mtime_ns for file in log.parent.rglob("*")}
    index = EpisodeIndex(log)
    index.page(Query.of({"q": "hello"}))
    while index.read_more():
        pass
    assert {file: file.stat().st_mtime_ns for file in log.parent.rglob("*")} == before
