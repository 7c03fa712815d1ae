"""Rows of SWE-bench, SWE-smith and R2E-Gym, and Terminal-Bench folders, as tasks of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor import adapters
from arl_envs.harbor.folder import read_folder
from arl_envs.harbor.options import Options
from arl_envs.harbor.own import standalone
from arl_envs.harbor.task import HarborTask
from arl_envs.harbor.tasks import make_task, task_source

from agentgym_rl import ConfigError

WRONG = "def add(a, b):\n    return a - b\n\n\ndef one():\n    return 1\n"
RIGHT = WRONG.replace("a - b", "a + b")
OLD_TEST = """import unittest

from calc import one


class Old(unittest.TestCase):
    def test_one(self):
        self.assertEqual(one(), 1)
"""
NEW_TEST = """import unittest

from calc import add


class New(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)


def test_plain():
    assert add(1, 1) == 2
"""
PATCH = """diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    return a - b
+    return a + b
 
 
 def one():
"""
BUG = PATCH.replace("-    return a - b\n+    return a + b", "-    return a + b\n+    return a - b")
TEST_PATCH = "diff --git a/tests/test_new.py b/tests/test_new.py\nnew file mode 100644\n" + (
    f"--- /dev/null\n+++ b/tests/test_new.py\n@@ -0,0 +1,{len(NEW_TEST.splitlines())} @@\n"
    + "".join(f"+{line}\n" for line in NEW_TEST.splitlines())
)
FAIL = ["tests/test_new.py::New::test_add", "tests/test_new.py::test_plain"]
KEEP = ["tests/test_old.py::Old::test_one"]


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def mirror(tmp_path: Path) -> tuple[Path, str, str]:
    """The folder of repositories, the commit with the bug, and the one without it."""
    folder = tmp_path / "repos" / "acme__calc"
    (folder / "tests").mkdir(parents=True)
    git(folder, "init", "-q", ".")
    commits = []
    for source in (WRONG, RIGHT):
        (folder / "calc.py").write_text(source)
        (folder / "tests/__init__.py").write_text("")
        (folder / "tests/test_old.py").write_text(OLD_TEST)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "change")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return tmp_path / "repos", commits[0], commits[1]


def swe_row(commit: str, **changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "acme__calc-1",
        "repo": "acme/calc",
        "base_commit": commit,
        "problem_statement": "add subtracts",
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": json.dumps(FAIL),  # as the published files have it
        "PASS_TO_PASS": KEEP,
        **changes,
    }


def rewards(task: HarborTask, tmp_path: Path, *, solved: bool) -> dict[str, float]:
    """Play the task without a sandbox: its own row's code runs here."""
    work, tests = tmp_path / "work", tmp_path / "tests"
    for files, top in ((task.environment, work), (task.tests, tests), (task.solution, tmp_path)):
        for path, data in files.items():
            file = top / path.removeprefix("repo/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    if solved:
        subprocess.run(["sh", str(tmp_path / "solve.sh")], cwd=work, check=True)
    return run_selected(tests, work, with_pytest=False)


def run_selected(tests: Path, work: Path, *, with_pytest: bool) -> dict[str, float]:
    """The rewards of select_tests.py, which gets a nonce; without pytest as in a bare image."""
    script, logs = tests / "select_tests.py", tests.parent / "logs"
    if not with_pytest:
        code = script.read_text()
        assert 'find_spec("pytest")' in code
        script.write_text(code.replace('find_spec("pytest")', 'find_spec("no_such_module")'))
    command = [sys.executable, "-I", "-B", str(script), str(logs)]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, cwd=work, env=env, check=True, capture_output=True, input=b"a1b2\n")
    found = json.loads((logs / "reward.json").read_text())
    assert found.pop("nonce") == "a1b2"
    return found


Made = Callable[[Path, str, str], HarborTask]
FORMATS: dict[str, Made] = {
    "swe-bench": lambda repos, bad, good: adapters.swe_bench(swe_row(bad), repos),
    "swe-smith": lambda repos, bad, good: adapters.swe_smith(
        {
            "instance_id": "calc.func__1",
            "repo": "swesmith/acme__calc",
            "patch": BUG,
            "problem_statement": "add subtracts",
            "FAIL_TO_PASS": [*FAIL_OLD],
            "PASS_TO_PASS": KEEP,
            "image_name": "unused",
        },
        repos,
    ),
    "r2e-gym": lambda repos, bad, good: adapters.r2e_gym(
        {
            "repo_name": "acme__calc",
            "commit_hash": good,
            "problem_statement": "add subtracts",
            "execution_result_content": json.dumps(
                {"test_file_codes": [NEW_TEST], "test_file_names": ["test_1.py"]}
            ),
            "expected_output_json": json.dumps({"New.test_add": "PASSED", "test_plain": "PASSED"}),
        },
        repos,
    ),
}
FAIL_OLD = ("tests/test_add.py::test_add",)


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_becomes_a_task_that_its_solution_solves(
    name: str, mirror: tuple[Path, str, str], tmp_path: Path
) -> None:
    repos, bad, good = mirror
    if name == "swe-smith":  # its tests are in the repository
        (repos / "acme__calc/tests/test_add.py").write_text(
            "from calc import add\n\n\ndef test_add():\n    assert add(2, 2) == 4\n"
        )
        git(repos / "acme__calc", "add", "-A")
        git(repos / "acme__calc", "commit", "-q", "-m", "test")
    task = FORMATS[name](repos, bad, good)
    assert task.environment["repo/calc.py"].decode() == WRONG
    assert not any(path.startswith("repo/.git/") for path in task.environment)
    assert b"def test_plain" not in b"".join(task.environment.values())
    assert rewards(task, tmp_path / "no", solved=False)["reward"] == 0.0
    assert rewards(task, tmp_path / "yes", solved=True)["reward"] == 1.0


def test_partial_work_is_seen_in_the_metrics(mirror: tuple[Path, str, str], tmp_path: Path) -> None:
    repos, bad, _ = mirror
    task = adapters.swe_bench(swe_row(bad), repos)
    found = rewards(task, tmp_path / "no", solved=False)
    assert found == {"fail_to_pass": 0.0, "pass_to_pass": 1.0, "reward": 0.0}


def refused(row: dict[str, Any], repos: Path) -> str:
    with pytest.raises(ConfigError) as error:
        adapters.swe_bench(row, repos)
    return str(error.value)


def test_bad_rows_are_refused_by_name(mirror: tuple[Path, str, str]) -> None:
    repos, bad, _ = mirror
    assert "instance_id: got None" in refused({}, repos)
    assert "repository acme/none: no git repository at" in refused(
        swe_row(bad, repo="acme/none"), repos
    )
    assert "lacks the commit" in refused(swe_row("0" * 40), repos)
    assert "expected a commit" in refused(swe_row("--output=/x"), repos)
    assert "git apply" in refused(swe_row(bad, patch=BUG), repos)
    assert "FAIL_TO_PASS: got 'x'" in refused(swe_row(bad, FAIL_TO_PASS="x"), repos)
    assert "no test fails before the fix" in refused(swe_row(bad, FAIL_TO_PASS=[]), repos)
    assert "no git repository" in refused(swe_row(bad, repo="../../etc"), repos)


def test_a_patch_cannot_leave_the_repository(mirror: tuple[Path, str, str]) -> None:
    repos, bad, _ = mirror
    outside = TEST_PATCH.replace("tests/test_new.py", "../../evil.py")
    assert "git apply" in refused(swe_row(bad, test_patch=outside), repos)


def test_a_file_of_rows_becomes_a_dataset(
    mirror: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repos, bad, _ = mirror
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join([json.dumps(swe_row(bad)), "", "{", json.dumps({"a": 1})]))
    into = tmp_path / "tasks"
    code = adapters.main(["swe-bench", str(rows), "--repos", str(repos), "--into", str(into)])
    assert code == 1
    said = capsys.readouterr()
    assert "1 tasks written" in said.out
    assert "rows.jsonl:3" in said.err
    assert read_folder(into / "acme__calc-1").name == "acme__calc-1"


def test_files_that_are_left_out_of_exports_are_there(mirror: tuple[Path, str, str]) -> None:
    repos, bad, _ = mirror
    folder = repos / "acme__calc"
    git(folder, "checkout", "-q", bad)
    (folder / ".gitattributes").write_text("tests export-ignore\nversion export-subst\n")
    (folder / "version").write_text("$Format:%H$\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "attributes")
    task = adapters.swe_bench(swe_row(git(folder, "rev-parse", "HEAD")), repos)
    assert task.environment["repo/tests/test_old.py"] == OLD_TEST.encode()
    assert task.environment["repo/version"] == b"$Format:%H$\n"
    assert git(folder, "status", "--porcelain") == ""


def test_the_agents_version_of_a_named_test_does_not_count(
    mirror: tuple[Path, str, str], tmp_path: Path
) -> None:
    task = adapters.swe_bench(swe_row(mirror[1]), mirror[0])
    assert task.tests["files/tests/test_old.py"] == OLD_TEST.encode()
    ids = ["test_one (tests.test_old.Old)", "tests/none.py::test_x"]
    assert set(adapters.named({"tests/test_old.py": b"", "calc.py": b""}, ids)) == {
        "tests/test_old.py"
    }


def test_a_bare_name_gets_the_file_that_defines_it(mirror: tuple[Path, str, str]) -> None:
    row = swe_row(mirror[1], FAIL_TO_PASS=["test_plain"], PASS_TO_PASS=[])
    ids = json.loads(adapters.swe_bench(row, mirror[0]).tests["ids.json"])
    assert ids["fail_to_pass"] == ["tests/test_new.py::test_plain"]


def test_rows_end_at_line_ends_only(mirror: tuple[Path, str, str], tmp_path: Path) -> None:
    row = swe_row(mirror[1], problem_statement="one\u2028two\x85three")
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(json.dumps(row, ensure_ascii=False).encode() + b"\r\n\xff\n")
    written, left_out = adapters.convert(rows, "swe-bench", mirror[0], tmp_path / "tasks")
    assert written == ["acme__calc-1"]
    assert len(left_out) == 1


def test_a_name_that_is_too_long_for_a_folder_is_left_out(
    mirror: tuple[Path, str, str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(swe_row(mirror[1], instance_id="x" * 300)))
    written, left_out = adapters.convert(rows, "swe-bench", mirror[0], tmp_path / "tasks")
    assert (written, len(left_out)) == ([], 1)


def test_a_missing_file_of_rows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for form in ("swe-bench", "terminal-bench"):
        with pytest.raises(SystemExit):
            adapters.main([form, str(tmp_path / "none"), "--into", str(tmp_path / "tasks")])
        assert "none: expected a f" in capsys.readouterr().err


TESTS_OF_A_TARGET = """
import unittest
import pytest
from target import f

def test_f():
    assert f() == 1

@pytest.mark.parametrize("text", ["a b", "a c"])
def test_text(text):
    assert f() == 1

@pytest.mark.xfail
def test_known():
    assert f() == 2

@pytest.mark.skip
def test_skipped():
    pass

class C(unittest.TestCase):
    def test_m(self):
        self.assertEqual(f(), 1)
"""
IDS = ["test_f", "test_text[a b]", "test_text[a", "test_known", "C::test_m"]
FORGERIES = {
    "an exit at import": "import sys; sys.exit(0)",
    "a hard exit at import": "import os; os._exit(0)",
    "an exit in the call": "def f():\n    raise SystemExit(0)",
    "a hard exit in the call": "import os\ndef f():\n    os._exit(0)",
    "a summary in the output": (
        "def f():\n    for name in ('test_f', 'test_text[a b]', 'test_known', 'C::test_m'):\n"
        "        print(f'PASSED test_target.py::{name}')\n    return 2"
    ),
    "the record by the old way, a path among the arguments": (
        "import json, sys\ndef f():\n    try:\n        open(sys.argv[-1], 'w').write('true')\n"
        "    except OSError:\n        pass\n    return 2"
    ),
    "a record without a key": (
        "import json, os\nfor n in range(3, 64):\n    try:\n"
        '        os.write(n, b\'["test_target.py::test_f", true] x\\n["", true] x\\n\')\n'
        "    except OSError:\n        pass\nos._exit(0)"
    ),
    "the runner replaced": (
        "import pathlib, sys\nfor p in pathlib.Path('..').glob('tests/*.py'):\n"
        "    p.write_text('record(\"\", True)')\ndef f():\n    return 2"
    ),
    "a skipped test": ("import unittest\ndef f():\n    raise unittest.SkipTest('no')"),
    "a failure that is said to be expected": (
        "def f():\n    import pytest\n    pytest.xfail('so')"
    ),
    "a summary at the end": (
        "import atexit\natexit.register(print, 'PASSED test_target.py::test_f')\n"
        "def f():\n    return 2"
    ),
}


def selected(folder: Path, target: str, ids: list[str], *, with_pytest: bool) -> dict[str, float]:
    """The rewards of select_tests.py, for tests beside a module."""
    (folder / "tests").mkdir()
    (folder / "work").mkdir()
    (folder / "work/target.py").write_text(target)
    text = TESTS_OF_A_TARGET if with_pytest else PLAIN_TESTS
    (folder / "work/test_target.py").write_text(text)
    named = {"fail_to_pass": ids, "pass_to_pass": [], "removed": []}
    (folder / "tests/ids.json").write_text(json.dumps(named))
    for name, data in standalone("select_tests.py", "arl_judge.py").items():
        (folder / "tests" / name).write_bytes(data)
    return run_selected(folder / "tests", folder / "work", with_pytest=with_pytest)


PLAIN_TESTS = """
import unittest
from target import f

def test_f():
    assert f() == 1

class C(unittest.TestCase):
    def test_m(self):
        self.assertEqual(f(), 1)
"""


def test_the_right_program_passes_every_kind_of_id(tmp_path: Path) -> None:
    ids = [f"test_target.py::{name}" for name in IDS]
    right = "def f():\n    return 1"
    assert selected(tmp_path, right, ids, with_pytest=True)["reward"] == 1.0


def test_skipped_and_missing_tests_have_not_passed(tmp_path: Path) -> None:
    ids = [f"test_target.py::{name}" for name in ("test_f", "test_skipped")]
    found = selected(tmp_path, "def f():\n    return 1", ids, with_pytest=True)
    assert found == {"fail_to_pass": 0.5, "reward": 0.0}


@pytest.mark.parametrize("with_pytest", [True, False])
@pytest.mark.parametrize("kind", FORGERIES)
def test_the_code_under_test_cannot_say_that_it_passed(
    kind: str, with_pytest: bool, tmp_path: Path
) -> None:
    ids = [f"test_target.py::{name}" for name in ("test_f", "C::test_m")]
    found = selected(tmp_path, FORGERIES[kind], ids, with_pytest=with_pytest)
    assert found == {"fail_to_pass": 0.0, "reward": 0.0}


def test_tests_that_code_under_test_replaced_are_put_back(
    mirror: tuple[Path, str, str], tmp_path: Path
) -> None:
    """The first child's program spoils the tests of the later ones."""
    task = adapters.swe_bench(swe_row(mirror[1]), mirror[0])
    bad = "import pathlib\npathlib.Path('tests/test_old.py').write_text('def test_one(): pass')\n"
    changed = dict(task.environment)
    changed["repo/calc.py"] = f"{bad}{RIGHT}".replace("return 1", "return 7").encode()
    found = rewards(replace(task, environment=changed), tmp_path, solved=False)
    assert (found["fail_to_pass"], found["pass_to_pass"]) == (1.0, 0.0)


def test_generated_tasks_become_a_dataset(tmp_path: Path) -> None:
    into = tmp_path / "tasks"
    for kind in ("bugs", "chores"):
        asked = ["generated", kind, "--level", "2", "--num", "2", "--into", str(into)]
        assert adapters.main(asked) == 0
        tasks = task_source("eval", seed=0, options=Options(source=kind, level=2))
        for task in (tasks[0], tasks[1]):
            read, made = read_folder(into / task.id, name="it"), make_task(task)
            assert (read.instruction, read.config) == (made.instruction, made.config)
            assert read.environment == made.environment
            assert (read.tests, read.solution) == (made.tests, made.solution)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["bug"], "bug: expected one of bugs, chores"),
        (["bugs", "--level", "9"], "no level 9; allowed: 1, 2, 3, 4"),
        (["bugs", "--level", "0"], "level: got 0"),
        (["bugs", "--num", "0"], "--num 0"),
    ],
)
def test_generated_tasks_that_are_not_there(
    asked: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        adapters.main(["generated", *asked, "--into", str(tmp_path / "tasks")])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "tasks").exists()
