"""A runner of chosen tests, a file of its own in /tests: it pays if all of them pass.

ids.json names the tests: ids of pytest ("FILE::Class::test_b", "FILE") or of unittest
("test_b (tests.test_a.Class)"). pytest runs them if it is there, else unittest; plain functions
without parameters are tests, too. Only the standard library is needed.

The tests run in child processes. A test has passed if the child has written so in the end: neither
an exit code nor a line of output counts, which the code under test could give.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REWARD = Path("/logs/verifier/reward.json")
UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")


def main() -> None:
    ids = json.loads((HERE / "ids.json").read_text())
    work = Path.cwd()
    for path in ids["removed"]:
        (work / path).unlink(missing_ok=True)
    if (HERE / "files").is_dir():
        shutil.copytree(HERE / "files", work, dirs_exist_ok=True)
    passed = {name: passes(ids[name]) for name in ("fail_to_pass", "pass_to_pass")}
    rewards: dict[str, float] = {
        name: sum(found) / len(found) for name, found in passed.items() if found
    }
    rewards["reward"] = float(all(all(found) for found in passed.values()))
    REWARD.parent.mkdir(parents=True, exist_ok=True)
    REWARD.write_text(json.dumps(rewards))


def passes(ids: list[str]) -> list[bool]:
    """Return for each test whether it passes."""
    if not ids:
        return []
    with_pytest = importlib.util.find_spec("pytest") is not None
    if with_pytest and not any(UNITTEST.fullmatch(each) for each in ids):
        return judged(ids, in_child("--pytest", json.dumps(ids)) or {})
    return [in_child("--one", each) is True for each in ids]


def in_child(*arguments: str) -> Any:
    """Return what this file writes as a child process; None if it ends before that."""
    with tempfile.TemporaryDirectory() as folder:
        found, said = Path(folder, "found"), Path(folder, "said")
        command = [sys.executable, "-B", __file__, *arguments, str(found)]
        with said.open("wb") as output:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        sys.stdout.write(said.read_bytes()[-20_000:].decode("utf-8", "replace"))
        return json.loads(found.read_text()) if found.exists() else None


def judged(ids: Iterable[str], outcomes: dict[str, bool]) -> list[bool]:
    """Return for each id whether its tests have run and passed: one test, those of a file or class,
    or those with the same beginning, as data sets cut ids at the first blank of a parameter."""
    found: list[bool] = []
    for test in ids:
        mine = [
            is_good
            for name, is_good in outcomes.items()
            if test in (name, name.split(" ")[0]) or name.startswith(f"{test}::")
        ]
        found.append(bool(mine) and all(mine))
    return found


def run_pytest(ids: list[str]) -> dict[str, bool]:
    """Run tests with pytest; return for each one whether it has passed, or failed as expected."""
    import pytest  # before the work folder is searched for modules

    sys.path[0] = str(Path.cwd())
    outcomes: dict[str, bool] = {}

    class Record:
        def pytest_runtest_logreport(self, report: Any) -> None:
            before = outcomes.get(report.nodeid, True)
            is_good = report.passed or hasattr(report, "wasxfail")
            outcomes[report.nodeid] = before and is_good

    # All parameters of a function run, as the text of one may not be an id on the command line.
    wanted = list(dict.fromkeys(test.partition("[")[0] for test in ids))
    pytest.main(["-rA", "-q", "-p", "no:cacheprovider", *wanted], plugins=[Record()])
    return outcomes


def run_one(test: str) -> bool:
    """Run one test in this process; return whether it ran and passed."""
    sys.path.insert(0, str(Path.cwd()))
    if found := UNITTEST.fullmatch(test):
        owner = found[2] if found[2].endswith(found[1]) else f"{found[2]}.{found[1]}"
        return good(unittest.defaultTestLoader.loadTestsFromName(owner))
    path, *names = test.split("::")
    module = ".".join(Path(path).with_suffix("").parts)
    if len(names) == 1:
        function = getattr(__import__(module, fromlist=["_"]), names[0], None)
        if inspect.isfunction(function):
            function()
            return True
    return good(unittest.defaultTestLoader.loadTestsFromName(".".join([module, *names])))


def good(suite: unittest.TestSuite) -> bool:
    result = unittest.TextTestRunner().run(suite)
    return result.wasSuccessful() and result.testsRun > len(result.skipped)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        Path(sys.argv[3]).write_text(json.dumps(run_one(sys.argv[2])))
    elif sys.argv[1:2] == ["--pytest"]:
        Path(sys.argv[3]).write_text(json.dumps(run_pytest(json.loads(sys.argv[2]))))
    else:
        main()
