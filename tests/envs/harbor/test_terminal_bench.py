"""Folders of Terminal-Bench 1: their conversion, and the reading of their tests' output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor import adapters
from arl_envs.harbor.arl_results import NoResult, read
from arl_envs.harbor.terminal_bench import note_on

from agentgym_rl import ConfigError
from tests.kit.cases import cases

from .stand_in import written


def terminal_bench_folder(tmp_path: Path, compose: str = "") -> Path:
    folder = tmp_path / "hello"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text(
        "instruction: |\n  Write hello into hello.txt.\ndifficulty: easy\n"
        "max_agent_timeout_sec: 120\nmax_test_timeout_sec: 30\n"
    )
    (folder / "Dockerfile").write_text("FROM python:3.11-slim\nWORKDIR /app\n")
    (folder / "docker-compose.yaml").write_text(
        compose or "services:\n  client:\n    build: .\n    working_dir: /work\n"
    )
    (folder / "run-tests.sh").write_text('pytest "$TEST_DIR/test_outputs.py" -rA\n')
    (folder / "tests/test_outputs.py").write_text("")
    (folder / "solution.sh").write_text("echo hello > hello.txt\n")
    return folder


def test_a_folder_of_terminal_bench(tmp_path: Path) -> None:
    task = adapters.terminal_bench(terminal_bench_folder(tmp_path))
    assert task.instruction == "Write hello into hello.txt.\n"
    assert task.config["agent"] == {"timeout_sec": 120.0}
    assert task.environment["Dockerfile"].endswith(b"WORKDIR /work\n")
    own = ["arl_judge.py", "arl_results.json", "arl_results.py", "conftest.py"]
    assert sorted(task.tests) == [*own, "run-tests.sh", "test.sh", "test_outputs.py"]
    assert task.solution == {"solve.sh": b"echo hello > hello.txt\n"}


@pytest.mark.parametrize(
    ("compose", "said"),
    [
        ("services: {a: {}, b: {}}", "several services: a, b"),
        ("services: {a: {privileged: true}}", "privileged is not supported"),
        ("services: {a: text}", "no Terminal-Bench task"),
        ("services: [a]", "no Terminal-Bench task"),
        ("services:", "no Terminal-Bench task"),
        ("services: {a: {environment: ['TOKEN=${TOKEN}']}}", "without variables of the host"),
        ("services: {a: {environment: {A: {}, 1: 2}}}", "no Terminal-Bench task"),
    ],
)
def test_other_folders_of_terminal_bench(tmp_path: Path, compose: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        adapters.terminal_bench(terminal_bench_folder(tmp_path, compose))


def test_variables_of_a_compose_file_are_taken_literally(tmp_path: Path) -> None:
    compose = "services: {a: {environment: ['A=x \"y\" $$HOME', 'B=${T_BENCH_X}', C=]}}"
    task = adapters.terminal_bench(terminal_bench_folder(tmp_path, compose))
    lines = task.environment["Dockerfile"].decode().splitlines()
    assert lines[2:] == ['ENV A="x \\"y\\" \\$HOME"', 'ENV C=""']


TESTS = b"""
import pytest
from target import f, g

def test_f():
    assert f() == 1

@pytest.mark.parametrize("n", [1, 2])
def test_g(n):
    assert g() == 2
"""
RIGHT = "def f():\n    return 1\ndef g():\n    return 2\n"
WRONG = RIGHT.replace("return 1", "return 0")
SUMMARY = """
=== short test summary info ===
PASSED a/test_outputs.py::test_f
PASSED a/test_outputs.py::test_g[1]
=== 3 passed in 0.1s ===
"""
TO_EVERYTHING = f"""
import os
for n in range(1, 64):
    try:
        os.write(n, {SUMMARY.encode()!r})
    except OSError:
        pass
"""
TO_THE_JUDGE = """
import socket
for n in range(1, 64):
    try:
        os.write(n, os.urandom(32) + bytes(1))
        judge = socket.socket(socket.AF_UNIX)
        judge.connect(os.environ["ARL_WITNESS"])
    except OSError:
        pass
os._exit(0)
"""
PAY = """
import atexit, os, pathlib
def pay():
    logs = pathlib.Path("../logs")
    logs.mkdir(exist_ok=True)
    (logs / "reward.json").write_text('{"reward": 1.0}')
atexit.register(pay)
if os.fork() == 0:
    import time
    while True:
        time.sleep(0.01)
        pay()
"""
IN_A_FAILURE = "def f():\n    raise ValueError('x\\nPASSED a/test_outputs.py::test_f')\n"
CHEATS = {
    "nothing": "",
    "a wrong program": WRONG,
    "a summary printed": f"print({SUMMARY!r})\n{WRONG}",
    "a summary to every descriptor": TO_EVERYTHING + WRONG,
    "a summary in the message of a failure": f"{IN_A_FAILURE}def g():\n    return 2\n",
    "a summary to every descriptor, and a hard exit": f"{TO_EVERYTHING}os._exit(0)\n",
    "a summary, and no further output": f"{TO_EVERYTHING}os.closerange(1, 64)\n{WRONG}",
    "a summary, and a word to the judge": f"{TO_EVERYTHING}{TO_THE_JUDGE}",
    "a hard exit": "import os\nos._exit(0)",
    "the end of the run": RIGHT.replace("return 2", "import pytest; pytest.exit('x', 0)"),
    "the end of the run by a key": RIGHT.replace("return 2", "raise KeyboardInterrupt"),
    "a module that is skipped": "import pytest; pytest.skip('x', allow_module_level=True)",
    "a test that is skipped": WRONG.replace("return 0", "import pytest; pytest.skip('x')"),
    "a failure as expected": WRONG.replace("return 0", "import pytest; pytest.xfail('x')"),
    "the reward file, at the end and later": PAY + WRONG,
}
ENDS = (" 2>&1 | tee log.txt", " || true", "\necho done")
"""The ends of run-tests.sh that hide its exit code."""


def folder_of(tmp_path: Path, script: str, **task: Any) -> Path:
    """The folder of a task with the tests above."""
    about = {"instruction": "Do it.", **task}
    files = {
        "task.yaml": json.dumps(about).encode(),
        "Dockerfile": b"FROM python:3.11-slim\nWORKDIR /app\n",
        "run-tests.sh": f"{script}\n".encode(),
        "solution.sh": b"true\n",
        "tests/test_outputs.py": TESTS,
    }
    return written(tmp_path / "it", files)


def judged(tmp_path: Path, program: str, end: str = "") -> dict[str, Any]:
    """The reward file of a converted task, whose tests run here: {} if there is none."""
    run = (
        f"CI=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -rA "
        "-p no:cacheprovider $TEST_DIR/test_outputs.py"
    )
    made = adapters.terminal_bench(folder_of(tmp_path, run + end))
    tests = written(tmp_path / "tests", made.tests)
    app = written(tmp_path / "app", {"target.py": program.encode()})
    command = ["sh", str(tests / "test.sh"), str(tmp_path / "logs")]
    subprocess.run(command, cwd=app, input=b"a1b2\n", capture_output=True)
    reward = tmp_path / "logs/reward.json"
    return json.loads(reward.read_bytes()) if reward.exists() else {}


@pytest.mark.slow
def test_a_right_program_is_paid(tmp_path: Path) -> None:
    found = judged(tmp_path, RIGHT, ENDS[0])
    assert found == {"reward": 1.0, "passed": 1.0, "nonce": "a1b2"}


@pytest.mark.slow
@cases("end", ENDS)
def test_an_end_that_hides_the_exit_code_pays_nobody(tmp_path: Path, end: str) -> None:
    assert judged(tmp_path, "", end)["reward"] == 0.0


@pytest.mark.slow
@cases("name", CHEATS)
def test_no_program_makes_up_its_results(tmp_path: Path, name: str) -> None:
    found = judged(tmp_path, CHEATS[name])
    assert found.get("reward", 0.0) == 0.0 or "nonce" not in found


def order(parser: str = "pytest", **changes: Any) -> dict[str, Any]:
    tests = {"test_a.py": ["test_x", "C::test_y"]}
    return {"parser": parser, "allowed": [], "tests": tests, **changes}


GOOD = """
=========================== short test summary info ============================
PASSED ../tests/test_a.py::test_x[a b]
PASSED ../tests/test_a.py::C::test_y
============================== 2 passed in 0.01s ===============================
"""
EARLIER = "== short test summary info ==\nERROR b.py::t - x\n"
BAD = {
    "a failure": GOOD + "FAILED ../tests/test_a.py::test_z - assert 0\n",
    "a failure before its forged pass": EARLIER + GOOD,
    "a missing test": GOOD.replace("test_y", "test_other"),
    "a missing file": GOOD.replace("test_a.py", "test_b.py"),
    "a count of failures alone": GOOD.replace("2 passed", "1 failed, 2 passed"),
    "a line that something cut": GOOD + "xxFAILED a.py::t\n= 1 failed, 2 passed in 0.1s =\n",
    "a stop": GOOD + "!!!!!!!!!!!! _pytest.outcomes.Exit: x !!!!!!!!!!!!\n",
    "an unexpected pass": GOOD + "XPASS ../tests/test_a.py::test_z\n",
    "a skipped test": GOOD + "SKIPPED [1] ../tests/test_a.py:3: no\n",
    "an expected failure": GOOD + "XFAIL ../tests/test_a.py::test_z\n",
}


def test_the_summary_of_pytest_is_read() -> None:
    assert read(GOOD, order()) == {"test_x[a b]": True, "C::test_y": True}
    colored = GOOD.replace("PASSED", "\x1b[32mPASSED\x1b[0m").replace("===", "\x1b[36m===")
    assert all(read(colored, order()).values())
    more = GOOD + "SKIPPED [2] a.py:3: no\nXFAIL a.py::t - x\n"
    assert all(read(more, order(allowed=["SKIPPED", "XFAIL"])).values())
    less = GOOD.replace("PASSED ../tests/test_a.py::C::test_y", "SKIPPED [1] a.py:3: no")
    assert all(read(less, order(allowed=["SKIPPED"])).values())


@cases("name", BAD)
def test_an_output_that_does_not_prove_success(name: str) -> None:
    assert not all(read(BAD[name], order()).values())


def test_all_skipped_is_not_passed() -> None:
    text = GOOD.replace("PASSED ../tests/test_a.py", "SKIPPED [1] a.py")
    assert not all(read(text, order(allowed=["SKIPPED"], tests={})).values())


def test_a_summary_without_results_is_none() -> None:
    for text in ("2 passed in 0.01s", "== short test summary info ==\n2 passed in 0.01s"):
        with pytest.raises(NoResult):
            read(text, order())


MARKED = {
    "swebench": "SWEBench results {} here\n",
    "sweperf": "SWE-Perf results {} here\n",
    "mlebench": "MLEBench results {} here\n",
}


@cases("parser", MARKED)
def test_results_between_lines_are_read(parser: str) -> None:
    begin, end = (MARKED[parser].format(word) for word in ("starts", "ends"))
    won = "ALL TESTS PASSED\n" if parser == "mlebench" else "PASSED\n"
    assert read(f"x\n{begin}{won}{end}y", order(parser)) == {"tests": True}
    assert read(f"{begin}FAILED\n{end}", order(parser)) == {"tests": False}
    assert read(f"{begin}{won}{end}{begin}FAILED\n{end}", order(parser)) == {"tests": False}
    with pytest.raises(NoResult, match="no lines"):
        read(won, order(parser))


def test_swe_lancer_is_read() -> None:
    assert read("SWE Lancer success\n", order("swelancer")) == {"tests": True}
    both = "SWE Lancer success\nSWE LANCER FAILURE\n"
    assert read(both, order("swelancer")) == {"tests": False}
    with pytest.raises(NoResult):
        read("the user_tool is completed", order("swelancer"))


def test_an_unknown_parser_is_refused_by_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "pytest", parser_name="pytests")
    with pytest.raises(ConfigError, match=r"got 'pytests'; allowed: pytest, .*did you mean pytest"):
        adapters.terminal_bench(folder)


def test_a_parser_that_can_find_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "a", "python3 $TEST_DIR/check.py | tee log")
    (folder / "tests/test_outputs.py").unlink()
    (folder / "tests/check.py").write_text("assert 1\n")
    made = adapters.terminal_bench(folder)
    assert "its parser pytest looks for 'short test summary info'" in note_on(made)
    assert made.solution == {}
    into = ["--into", str(tmp_path / "out")]
    assert adapters.main(["terminal-bench", str(tmp_path / "a"), *into]) == 0
    assert "note: task it: nobody is ever paid" in capsys.readouterr().err


def test_the_tests_that_a_run_has_to_name(tmp_path: Path) -> None:
    def named(script: str) -> Any:
        made = adapters.terminal_bench(folder_of(tmp_path / str(len(script)), script))
        return json.loads(made.tests["arl_results.json"])["tests"]

    both = {"test_outputs.py": ["test_f", "test_g"]}
    assert named("python -m pytest $TEST_DIR/test_outputs.py") == both
    assert named("pytest $TEST_DIR") == both
    assert named("pytest $TEST_DIR/test_outputs.py -k f") == {}
    assert named("pytest $TEST_DIR/test_outputs.py::test_f") == {}
