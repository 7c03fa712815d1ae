"""A runner of chosen tests, a file of its own in /tests: it pays if all of them pass.

ids.json names the tests: ids of pytest ("FILE::Class::test_b", "FILE") or of unittest
("test_b (tests.test_a.Class)"). pytest runs them if it is there, else unittest; plain functions
without parameters are tests, too. Only the standard library is needed.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
REWARD = Path("/logs/verifier/reward.json")
_UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")
_SUMMARY = re.compile(r"^(PASSED|XPASS) (\S.*)$")


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
    if with_pytest and not any(_UNITTEST.fullmatch(each) for each in ids):
        return with_pytest_alone(ids)
    return [alone(each) for each in ids]


def with_pytest_alone(ids: list[str]) -> list[bool]:
    command = [sys.executable, "-m", "pytest", "-rA", "-q", "-p", "no:cacheprovider", *ids]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    sys.stdout.write(done.stdout[-20_000:])
    said = (_SUMMARY.match(line) for line in done.stdout.splitlines())
    good = {found[2].strip() for found in said if found}
    whole = done.returncode == 0
    return [each in good or ("::" not in each and whole) for each in ids]


def alone(test: str) -> bool:
    """Return whether a test passes in a process of its own."""
    command = [sys.executable, "-B", str(HERE / "select_tests.py"), "--one", test]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    sys.stdout.write(f"{test}: exit code {done.returncode}\n{done.stderr[-2000:]}\n")
    return done.returncode == 0


def run_one(test: str) -> bool:
    """Run one test in this process; return whether it ran and passed."""
    sys.path.insert(0, str(Path.cwd()))
    if found := _UNITTEST.fullmatch(test):
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
        sys.exit(0 if run_one(sys.argv[2]) else 1)
    main()
