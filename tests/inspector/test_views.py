"""A view of another package: an environment shows its messages in a form of its own."""

import json
import os
import re
import subprocess
import sys

import pytest
from arl_inspect.views import with_views
from made_runs import make_episode, make_run

from tests.kit.cases import cases
from tests.kit.extension import install

BOARD = "XO3\n456\n789"
THEIRS = '''
def board(message, task):
    """Show the board as a table."""
    if message["role"] == "user":
        return [[[*line] for line in message["content"].splitlines()], task["name"], b"png"]


def broken(message, task):
    raise ValueError("no board")
'''
POINTS = {"episode_views": {"grid": "theirs_views:board", "broken": "theirs_views:broken"}}
SAID = [{"role": "user", "content": BOARD}, {"role": "assistant", "content": "3"}]


@pytest.fixture
def installed(tmp_path) -> dict[str, str]:
    """An environment of processes in which the package with the views is installed."""
    folder = install(tmp_path / "site", {"theirs_views": THEIRS}, POINTS)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def shown(installed: dict[str, str], env_id: str):
    """The parts under `shown` of both messages, in a process that has the package."""
    program = (
        "import json, sys; from arl_inspect.views import with_views; "
        "said, env_id = json.loads(sys.argv[1]); "
        "print(json.dumps([it.get('shown') for it in with_views(said, env_id, {'name': 'b'})]))"
    )
    command = [sys.executable, "-c", program, json.dumps([SAID, env_id])]
    done = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cases("env_id", ["grid", "grid-v3", "grid:small"])
def test_messages_are_shown_by_the_view_of_their_environment(installed, env_id):
    table = {"table": [[*"XO3"], [*"456"], [*"789"]]}
    picture = {"picture": "data:image/png;base64,cG5n"}
    assert shown(installed, env_id) == [[table, {"text": "b"}, picture], None]


def test_a_view_that_fails_is_named(installed):
    failed = [{"text": "the view broken failed: ValueError: no board"}]
    assert shown(installed, "broken") == [failed, failed]


def test_without_a_view_messages_are_as_they_were():
    assert with_views(SAID, "grid", {}) is SAID


@pytest.mark.slow
def test_the_list_and_the_exported_page_have_it(installed, tmp_path):
    run = make_run(tmp_path / "run", {"g0": [make_episode("e", "g0", env_id="grid")]})

    def arl(*words: str) -> str:
        command = [sys.executable, "-m", "agentgym_rl", *words]
        done = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.search(r"view of episodes +grid +Show the board as a table", arl("list"))
    arl("inspect", str(run), "--html", str(tmp_path / "run.html"))
    assert (tmp_path / "run.html").stat().st_size > 10_000
