"""The verifier of a Terminal-Bench task, a file of its own in /tests: it runs run-tests.sh, and
reads the results from the output by the task's parser, as Terminal-Bench does.

The exit code of run-tests.sh does not count. The output also has what programs under test print, so
this reading is stricter than Terminal-Bench's: a failure stays one, whatever is printed after it; a
run that was stopped, or lacks tests of the task's files, has not passed; nor has a test that was
skipped or expected to fail if the files of the task never do that. Where pytest reads the
plugin beside the tests (`arl_witness.py`), it has to have come to its end by itself, too.
Rules: https://github.com/laude-institute/terminal-bench (terminal_bench/parsers), read at 0.2.18.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if __package__:
    from .arl_judge import clear_reward, harden, heard, reap, taken_nonce, write_reward
else:  # in /tests, which an isolated interpreter does not search
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from arl_judge import clear_reward, harden, heard, reap, taken_nonce, write_reward  # pyright: ignore[reportMissingImports]

    sys.path.pop(0)

LOGS = "/logs/verifier"
ORDER = "arl_results.json"
MAX_OUTPUT_BYTES = 15 << 20
HEADER = re.compile(r"=+\s*short test summary info\s*=+", re.IGNORECASE)
MARKERS = {
    "swebench": ("SWEBench results starts here", "SWEBench results ends here", "PASSED"),
    "sweperf": ("SWE-Perf results starts here", "SWE-Perf results ends here", "PASSED"),
    "mlebench": ("MLEBench results starts here", "MLEBench results ends here", "ALL TESTS PASSED"),
}
"""The lines around the result, and the result of success, by parser."""
SIGNS = {
    "pytest": ("pytest", "short test summary info"),
    "swelancer": ("swe lancer success",),
    **{name: (first,) for name, (first, _, _) in MARKERS.items()},
}
"""The texts of which one is in a task's files if its output can have a result, in lower case or as
printed, by parser."""
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RESULT = re.compile(r"(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR):?\s+(\S.*)")
_COUNTED = re.compile(r"\b[1-9]\d* (?:failed|errors?)\b.* in \d")
_STOPPED = re.compile(r"!{3,} .+ !{3,}")
_SKIPS = re.compile(r"\[(\d{1,9})\]")


KEY_BYTES = 32
MAX_RUNS = 100


class NoResult(Exception):
    """An output in which the parser finds no result."""


def read(output: str, order: dict[str, Any]) -> dict[str, bool]:
    """Return whether tests passed, by their names; the whole task's for most parsers.

    Raises:
        NoResult: there is none.
    """
    text = _STYLE.sub("", output)
    if order["parser"] == "pytest":
        return _of_pytest(text, order)
    if order["parser"] == "swelancer":
        said = text.lower()
        results = [word in said for word in ("swe lancer success", "swe lancer failure")]
        if not any(results):
            raise NoResult("no line SWE LANCER SUCCESS or SWE LANCER FAILURE")
        return {"tests": results == [True, False]}
    begin, end, success = MARKERS[order["parser"]]
    if begin not in text or end not in text:
        raise NoResult(f"no lines {begin!r} and {end!r}")
    block = text.split(begin, 1)[1].rsplit(end, 1)[0]
    return {"tests": block.strip() == success}


def _of_pytest(text: str, order: dict[str, Any]) -> dict[str, bool]:
    """Return the results of pytest's summary (-rA).

    Everything after the first header counts, so an output that forges one is read together with
    the true results.
    """
    parts = HEADER.split(text, maxsplit=1)
    if len(parts) < 2:
        raise NoResult("no 'short test summary info' of pytest")
    results: dict[str, bool] = {}
    files: dict[str, set[str]] = {}
    num_skipped = 0
    for line in parts[1].split("\n"):
        found = _RESULT.match(line.rstrip("\r"))
        if not found:
            continue
        status, what = found[1], found[2].strip()
        if status in ("FAILED", "ERROR"):
            what = what.split(" - ", 1)[0]
        is_good = status == "PASSED" or (
            status in ("SKIPPED", "XFAIL") and status in order["allowed"]
        )
        if status == "SKIPPED":
            counted = _SKIPS.match(what)
            num_skipped += int(counted[1]) if counted else 1
        name = what.split("::", 1)[-1]
        results[name] = results.get(name, True) and is_good
        path, _, test = what.partition("::")
        if status in ("PASSED", "XFAIL"):
            files.setdefault(path.rpartition("/")[2], set()).add(re.split(r"[\[ ]", test)[0])
    if not results:
        raise NoResult("no result in pytest's summary: it needs the option -rA")
    if _COUNTED.search(parts[1]):
        results["the count of failures"] = False
    if _STOPPED.search(parts[1]):
        results["the run, which was stopped"] = False
    missing = [
        f"{file}::{test}"
        for file, tests in order["tests"].items()
        for test in tests
        if test not in files.get(file, ())
    ]
    allowed = num_skipped if "SKIPPED" in order["allowed"] else 0
    results.update(dict.fromkeys(missing if len(missing) > allowed else (), False))
    if not any(files.values()):
        results["a test that passed"] = False
    return results


def said_by(command: list[str], env: dict[str, str]) -> str:
    """Run a program, show its output, and return it; nothing that it started is left.

    Raises:
        NoResult: the output is larger than MAX_OUTPUT_BYTES.
    """
    end, theirs = os.pipe()
    program = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    found = bytearray()
    size = 0
    for more in heard(end, program, MAX_OUTPUT_BYTES):
        size += len(more)
        if size <= MAX_OUTPUT_BYTES:
            found += more
            sys.stdout.buffer.write(more)
            sys.stdout.buffer.flush()
    os.close(end)
    reap(program.pid)
    if size > MAX_OUTPUT_BYTES:
        raise NoResult(f"the output has more than {MAX_OUTPUT_BYTES >> 20} MB")
    return found.decode("utf-8", "replace")


def ends_of(judge: socket.socket) -> list[bool]:
    """Return whether each run of pytest that has announced itself has ended by itself, with all its
    tests passed; all of them are over."""
    judge.setblocking(False)
    found: list[bool] = []
    while len(found) < MAX_RUNS:
        try:
            run, _ = judge.accept()
        except BlockingIOError:
            return found
        with run:
            run.setblocking(False)
            try:
                said = run.recv(4 * KEY_BYTES)
            except BlockingIOError:  # it announced nothing, and something holds it open
                said = b""
        commitment, key, status = said[:KEY_BYTES], said[KEY_BYTES:-1], said[-1:]
        found.append(hashlib.blake2b(key, digest_size=KEY_BYTES).digest() == commitment)
        found[-1] &= len(key) == KEY_BYTES and status == b"\0"
    return [False]


def main(logs: str) -> int:
    """Write the reward of the task: 1 if all its tests passed, 0 if not; none without a result."""
    harden()
    nonce = taken_nonce()
    here = Path(__file__).resolve().parent
    order = json.loads((here / ORDER).read_text())
    place = os.path.join(tempfile.mkdtemp(), "judge")
    judge = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    judge.bind(place)
    judge.listen(MAX_RUNS)
    env = {**os.environ, "TEST_DIR": str(here), "ARL_WITNESS": place}
    try:
        results = read(said_by(["bash", str(here / "run-tests.sh")], env), order)
        if not all(ends_of(judge)):
            results["pytest, which did not end by itself or not well"] = False
    except NoResult as error:
        print(f"the parser {order['parser']} finds no result: {error}")
        clear_reward(logs)
        if order["can_have_results"]:
            return 1
        results = {"tests": False}
    failed = [name for name, is_good in results.items() if not is_good]
    passed = 1 - len(failed) / len(results)
    write_reward(logs, {"reward": float(not failed), "passed": passed}, nonce)
    print(f"not passed: {'; '.join(failed)}"[:1000] if failed else "all tests passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else LOGS))
