"""A runner of chosen tests, a file of its own in /tests: it pays if all of them pass.

ids.json names the tests: ids of pytest ("FILE::Class::test_b", "FILE") or of unittest
("test_b (tests.test_a.Class)"). pytest runs them if it is there, else unittest; plain functions
without parameters are tests, too. Only the standard library is needed.

The tests run in child processes, which record each test as it ends, and then their own end, through
a pipe in lines that prove the child's key: neither an exit code nor a line of output counts, nor a
test of a child that recorded no end. The key comes through standard input; no argument, variable or
file has it. Code under test runs in the same process, so a forged line is hard to make, not
impossible. The nonce of the reward file is in another process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

WORD = "arl_child"
"""The name of this module in a child."""
if __package__:
    from .arl_judge import harden, heard, reap, remove, taken_nonce, write_reward
elif __name__ != WORD:  # in /tests, which an isolated interpreter does not search
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from arl_judge import harden, heard, reap, remove, taken_nonce, write_reward  # pyright: ignore[reportMissingImports]

    sys.path.pop(0)

LOGS = "/logs/verifier"
UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")
MAX_RECORD_BYTES = 64 << 20
OUTPUT_BYTES = 20_000
_BEGIN = (
    f"import sys; sys.path.pop(0); import json; order = json.load(sys.stdin); "
    f"exec(compile(order.pop('code'), '{WORD}', 'exec'), {{'__name__': '{WORD}', 'order': order}})"
)
if TYPE_CHECKING:  # Python 3.8 has no such aliases
    Files = Mapping[str, bytes | None]
    """The contents of files by their path in the work folder; None: the file has to be gone."""
    Record = Callable[[str, bool], None]
    """A function that records the result of a test; of "" the end of all tests."""


def main(logs: str) -> None:
    harden()
    nonce = taken_nonce()
    code = Path(__file__).read_text()
    ids = json.loads(Path(__file__).with_name("ids.json").read_text())
    top = Path(__file__).resolve().parent / "files"
    files: dict[str, bytes | None] = dict.fromkeys(ids["removed"])
    files.update(
        {str(each.relative_to(top)): each.read_bytes() for each in top.rglob("*") if each.is_file()}
    )
    passed = {name: passes(ids[name], code, files) for name in ("fail_to_pass", "pass_to_pass")}
    rewards: dict[str, float] = {
        name: sum(found) / len(found) for name, found in passed.items() if found
    }
    rewards["reward"] = float(all(all(found) for found in passed.values()))
    write_reward(logs, rewards, nonce)


# ------------------------------------------------------------------ the judge
def passes(ids: list[str], code: str, files: Files) -> list[bool]:
    """Return for each test whether it passes."""
    if not ids:
        return []
    if not any(UNITTEST.fullmatch(each) for each in ids):
        outcomes = in_child("pytest", ids, code, files)
        if outcomes is None or NO_PYTEST not in outcomes:
            return judged(ids, outcomes or {})
    return [(in_child("one", [each], code, files) or {}).get(each, False) for each in ids]


def put(files: Files) -> None:
    """Put the tests' files into the work folder, whatever an earlier child left in their places."""
    for path, data in files.items():
        place = Path(path)
        for folder in reversed(place.parents):
            if folder.is_symlink() or folder.is_file():
                folder.unlink()
        is_file = place.is_file() and not place.is_symlink()
        if data is None or not (is_file and place.read_bytes() == data):
            remove(path)
        if data is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            place.chmod(0o755 if data.startswith(b"#!") else 0o644)


def in_child(how: str, ids: list[str], code: str, files: Files) -> dict[str, bool] | None:
    """Return whether tests passed in a child process, by their names; None if it did not record its
    end. Nothing that it started is left."""
    put(files)
    key = secrets.token_hex(32)
    end, theirs = os.pipe()
    order = {"how": how, "ids": ids, "key": key, "to": theirs, "code": code}
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(json.dumps(order).encode())
        given.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-B", "-c", _BEGIN],
            stdin=given,
            stdout=said,
            stderr=said,
            pass_fds=[theirs],
        )
        os.close(theirs)
        lines = bytearray()
        for more in heard(end, child, MAX_RECORD_BYTES):
            lines += more
            if len(lines) > MAX_RECORD_BYTES:
                child.kill()
        os.close(end)
        reap(child.pid)
        said.seek(0, os.SEEK_END)
        said.seek(max(0, said.tell() - OUTPUT_BYTES))
        sys.stdout.write(said.read(OUTPUT_BYTES).decode("utf-8", "replace"))
        sys.stdout.flush()
    return outcomes_of(bytes(lines), key)


def outcomes_of(lines: bytes, key: str) -> dict[str, bool] | None:
    """Return the results that were recorded with the key; None without a record of the end."""
    outcomes: dict[str, bool] = {}
    number = 0
    for line in lines.split(b"\n"):
        text, _, mark = line.rpartition(b" ")
        if not secrets.compare_digest(mark, mark_of(key, number, text)):
            continue
        number += 1
        name, is_good = json.loads(text)
        if not name:
            return outcomes
        outcomes[name] = outcomes.get(name, True) and is_good
    return None


def mark_of(key: str, number: int, text: bytes) -> bytes:
    """Return the proof that a line of this number was written with the key."""
    made = hashlib.blake2b(b"%d %s" % (number, text), key=bytes.fromhex(key), digest_size=32)
    return made.hexdigest().encode()


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


# ------------------------------------------------------------------ the child
NO_PYTEST = "pytest is not there"


def child(how: str, ids: list[str], key: str, to: int) -> None:
    """Run tests in this process, and record them."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.set_inheritable(to, False)
    record = recorder(key, to)
    del key
    if how == "one":
        record(ids[0], run_one(ids[0]))
    elif importlib.util.find_spec("pytest") is None:
        record(NO_PYTEST, True)
    else:
        run_pytest(ids, record)
    record("", True)


def recorder(key: str, to: int) -> Record:
    """Return the function that writes a record to the descriptor `to`."""
    number = 0

    def record(name: str, is_good: bool) -> None:
        nonlocal number
        text = json.dumps([name, is_good]).encode()
        data = b"%s %s\n" % (text, mark_of(key, number, text))
        number += 1
        while data:
            data = data[os.write(to, data) :]

    return record


def run_pytest(ids: list[str], record: Record) -> None:
    """Run tests with pytest; record for each one whether it has passed, or failed as expected."""
    import pytest  # before the work folder is searched for modules

    sys.path.insert(0, str(Path.cwd()))

    foreign: set[str] = set()

    class Reports:
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
            yield
            error = call.excinfo  # by now that of a unittest, too
            if error is not None and error.errisinstance(pytest.xfail.Exception):
                places = [Path(str(each.path)) for each in error.traceback]
                if not _may_expect(places, Path(str(item.fspath))):
                    foreign.add(item.nodeid)

        def pytest_runtest_logreport(self, report: Any) -> None:
            is_expected = hasattr(report, "wasxfail") and report.nodeid not in foreign
            record(report.nodeid, bool(report.passed or is_expected))

    # All parameters of a function run, as the text of one may not be an id on the command line.
    wanted = list(dict.fromkeys(test.partition("[")[0] for test in ids))
    pytest.main(["-rA", "-q", "-p", "no:cacheprovider", *wanted], plugins=[Reports()])


def _may_expect(places: list[Path], test: Path) -> bool:
    """Return whether a test itself, or a mark, said that it fails as expected, and no code under
    test; `places` are the files of the traceback."""
    own = [each for each in places if {"_pytest", "pluggy"}.isdisjoint(each.parts)]
    return not own or own[-1] == test or own[-1].name == "conftest.py"


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
    return result.wasSuccessful() and result.testsRun > 0 and not result.skipped


if __name__ == WORD:
    child(**globals().pop("order"))
elif __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else LOGS)
