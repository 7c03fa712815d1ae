"""Tasks of other formats as task folders: rows of SWE-bench, SWE-smith and R2E-Gym,
Terminal-Bench 1, and the generated tasks.

    python -m arl_envs.harbor.adapters swe-bench ROWS.jsonl --repos MIRRORS --into TASKS
    python -m arl_envs.harbor.adapters terminal-bench FOLDER --into TASKS
    python -m arl_envs.harbor.adapters generated bugs --level 2 --num 100 --into TASKS

MIRRORS has a git repository per row's `repo`: its last part, or all of it with "__" for "/".
TASKS becomes a dataset folder, for `--env harbor:TASKS` and for Harbor's own runner. No code of a
row runs here.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import tomli_w

from agentgym_rl import ConfigError
from agentgym_rl.core import Split

from . import select_tests
from .folder import read_files
from .options import Options
from .own import standalone
from .task import HarborTask
from .tasks import GENERATORS, make_task, task_source
from .terminal_bench import checked, note_on, terminal_bench

WORK_DIR = "/testbed"
BASE_IMAGE = "python:3.11-slim"
GIT_TIMEOUT_S = 600.0
_RUN_IDS = '#!/bin/sh\nexec python3 -I -B "$(dirname "$0")/select_tests.py" "$@"\n'
_APPLY = (
    '#!/bin/sh\nset -e\nhere="$(dirname "$0")"\n'
    'cp -R "$here/files/." .\nwhile IFS= read -r path; do rm -f "$path"; done < "$here/removed"\n'
)
Row = Mapping[str, Any]
Files = dict[str, bytes]
Env = Mapping[str, str]


def swe_bench(row: Row, repos: Path) -> HarborTask:
    """Return the task of a SWE-bench row: the commit before a fix; tests that fail before it, and
    tests that have passed already.

    Raises:
        ConfigError: a field is missing, or its commit or a patch does not fit the repository.
    """
    name = _field(row, "instance_id")
    before = _commit(_repo(row, repos), _field(row, "base_commit"), name)
    tested = _patched(before, _field(row, "test_patch"), name)
    changed, removed = _changes(before, tested)
    fail, keep = (
        [_whole_id(changed, test) for test in _ids(row, field)]
        for field in ("FAIL_TO_PASS", "PASS_TO_PASS")
    )
    return _task(
        name,
        before,
        solved=_patched(before, _field(row, "patch"), name),
        tests=(named(tested, [*fail, *keep]) | changed, removed),
        statement=_field(row, "problem_statement"),
        fail=fail,
        keep=keep,
    )


def swe_smith(row: Row, repos: Path) -> HarborTask:
    """Return the task of a SWE-smith row, whose `patch` plants the bug in the repository's head.

    Raises:
        ConfigError: see `swe_bench`.
    """
    name = _field(row, "instance_id")
    right = _commit(_repo(row, repos), str(row.get("base_commit") or "HEAD"), name)
    fail, keep = _ids(row, "FAIL_TO_PASS"), _ids(row, "PASS_TO_PASS")
    return _task(
        name,
        _patched(right, _field(row, "patch"), name),
        solved=right,
        tests=(named(right, [*fail, *keep]), []),
        statement=_field(row, "problem_statement"),
        fail=fail,
        keep=keep,
    )


def r2e_gym(row: Row, repos: Path) -> HarborTask:
    """Return the task of an R2E-Gym row: the commit before `commit_hash`, and the tests that its
    `execution_result_content` carries, with the results of `expected_output_json`.

    Raises:
        ConfigError: see `swe_bench`; or a table in the row is no JSON.
    """
    repo = _repo({"repo": _field(row, "repo_name")}, repos)
    commit = _field(row, "commit_hash")
    name = f"{row['repo_name']}-{commit[:12]}"
    tested = _table(row, "execution_result_content", name)
    codes, names = tested.get("test_file_codes", []), tested.get("test_file_names", [])
    if not codes or len(codes) != len(names):
        raise ConfigError(f"task {name}: execution_result_content has no tests")
    files = {
        f"r2e_tests/{Path(path).name}": code.encode()
        for path, code in zip(names, codes, strict=True)
    }
    expected = _table(row, "expected_output_json", name)
    passing = [test for test, result in expected.items() if result == "PASSED"]
    return _task(
        name,
        _commit(repo, f"{commit}^", name),
        solved=_commit(repo, commit, name),
        tests=(files, []),
        statement=_field(row, "problem_statement"),
        fail=[_id_in(files, test) for test in passing],
        keep=[],
    )


def write_folder(task: HarborTask, folder: Path) -> None:
    """Write a task as a folder in Harbor's format.

    Raises:
        ConfigError: the folder is there already.
    """
    if folder.exists():
        raise ConfigError(f"{folder} is there already; choose another with --into")
    parts = {"environment": task.environment, "tests": task.tests, "solution": task.solution}
    contents: Files = {
        "task.toml": tomli_w.dumps(dict(task.config)).encode(),
        "instruction.md": task.instruction.encode(),
    }
    for part, files in parts.items():
        contents |= {f"{part}/{path}": data for path, data in files.items()}
    for path, data in contents.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        if data.startswith(b"#!"):
            file.chmod(0o755)


# ---------------------------------------------------------------------- a repository's task
def _task(
    name: str,
    before: Files,
    *,
    solved: Files,
    tests: tuple[Files, list[str]],
    statement: str,
    fail: Sequence[str],
    keep: Sequence[str],
) -> HarborTask:
    if not fail:
        raise ConfigError(f"task {name}: no test fails before the fix, so nothing shows it")
    changed, removed = _changes(before, solved)
    ids = {"fail_to_pass": list(fail), "pass_to_pass": list(keep), "removed": tests[1]}
    return checked(
        HarborTask(
            name=name,
            instruction=f"Resolve this issue of the repository in {WORK_DIR}:\n\n"
            f"{statement.strip()}\n",
            config={
                "schema_version": "1.4",
                "metadata": {"arl_nonce": True},
                "agent": {"timeout_sec": 1800.0},
                "verifier": {"timeout_sec": 1800.0},
            },
            environment={
                "Dockerfile": f"FROM {BASE_IMAGE}\nWORKDIR {WORK_DIR}\n"
                f"COPY repo/ {WORK_DIR}/\n".encode(),
                **{f"repo/{path}": data for path, data in before.items()},
            },
            tests={
                "test.sh": _RUN_IDS.encode(),
                **standalone("select_tests.py", "arl_judge.py"),
                "ids.json": json.dumps(ids, indent=1).encode(),
                **{f"files/{path}": data for path, data in tests[0].items()},
            },
            solution={
                "solve.sh": _APPLY.encode(),
                "removed": "".join(f"{path}\n" for path in removed).encode(),
                "files/.keep": b"",
                **{f"files/{path}": data for path, data in changed.items()},
            },
        )
    )


def _changes(before: Files, after: Files) -> tuple[Files, list[str]]:
    """Return the files that are new or different, and those that are gone."""
    changed = {path: data for path, data in after.items() if before.get(path) != data}
    return changed, sorted(before.keys() - after.keys())


def _repo(row: Row, repos: Path) -> Path:
    """Return the folder of a row's repository."""
    repo = _field(row, "repo")
    names = (repo, repo.replace("/", "__"), repo.rsplit("/", 1)[-1])
    found = [repos / name for name in names if ".." not in Path(name).parts]
    for folder in found:
        if (folder / ".git").exists() or (folder / "HEAD").is_file():
            return folder
    raise ConfigError(
        f"repository {repo}: no git repository at {' or '.join(map(str, found))}: "
        "clone it there (`git clone --mirror`)"
    )


def _commit(repo: Path, commit: str, name: str) -> Files:
    """Return the files of a commit, without links and submodules."""
    if not re.fullmatch(r"[A-Za-z0-9_./^~-]+", commit) or commit.startswith("-"):
        raise ConfigError(f"task {name}: base_commit: got {commit!r}, expected a commit")
    with (
        tempfile.TemporaryDirectory(prefix="arl-commit-") as folder,
        tempfile.TemporaryDirectory(prefix="arl-index-") as beside,
    ):
        # No `git archive`, which leaves out what .gitattributes names for export, often the tests.
        place = _git(repo, "rev-parse", "--absolute-git-dir", name=name).decode().strip()
        try:
            _git(repo, "cat-file", "-e", f"{commit}^{{commit}}", name=name)
        except ConfigError as error:
            raise ConfigError(f"{error}; {repo} lacks the commit: `git fetch` it") from error
        index = {"GIT_INDEX_FILE": f"{beside}/index", "GIT_DIR": place, "GIT_WORK_TREE": folder}
        _git(Path(folder), "read-tree", commit, name=name, env=index)
        _git(Path(folder), "checkout-index", "--all", "--quiet", name=name, env=index)
        links = [path for path in Path(folder).rglob("*") if path.is_symlink()]
        for link in links:
            link.unlink()
        return dict(read_files(Path(folder)))


def _patched(files: Files, patch: str, name: str) -> Files:
    """Return the files after a patch."""
    with tempfile.TemporaryDirectory(prefix="arl-patch-") as folder:
        for path, data in files.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        text = patch if patch.endswith("\n") else f"{patch}\n"
        _git(Path(folder), "apply", "--whitespace=nowarn", "-", name=name, given=text.encode())
        return dict(read_files(Path(folder)))


def _git(
    folder: Path, *arguments: str, name: str, given: bytes = b"", env: Env | None = None
) -> bytes:
    """Return the output of git in a folder, without any configuration of a user or repository."""
    env = {
        **(env or {}),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
        "HOME": "/nonexistent",
    }
    command = ["git", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, input=given, capture_output=True, timeout=GIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"task {name}: git {arguments[0]} failed: {error}") from error
    if done.returncode:
        stderr = done.stderr.decode("utf-8", "replace").strip()[-400:]
        raise ConfigError(f"task {name}: git {' '.join(arguments[:2])} failed: {stderr}")
    return done.stdout


# ---------------------------------------------------------------------- rows
def _field(row: Row, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            f"row {row.get('instance_id', '?')}: {name}: got {value!r:.60}, expected text"
        )
    return value


def _ids(row: Row, name: str) -> list[str]:
    """Return a list of tests, which some data sets keep as JSON text."""
    value = row.get(name, [])
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(
            f"row {row.get('instance_id', '?')}: {name}: got {row.get(name)!r:.60}, expected a "
            "list of tests"
        )
    return value


def _table(row: Row, field: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(_field(row, field))
    except ValueError as error:
        raise ConfigError(f"task {name}: {field} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"task {name}: {field}: expected a JSON object")
    return found


def _whole_id(files: Files, test: str) -> str:
    """Return the id of a test, with its file if a row has only its name."""
    return _id_in(files, test) if files and re.fullmatch(r"\w+(\[.*\])?", test) else test


def named(files: Files, tests: Sequence[str]) -> Files:
    """Return the files in which tests are, so that the agent's version of them does not count."""
    paths = {test.partition("::")[0] for test in tests}
    for test in tests:
        if found := select_tests.UNITTEST.fullmatch(test):
            *names, _ = found[2].split(".")
            paths |= {"/".join(names[:end]) + ".py" for end in range(1, len(names) + 1)}
    return {path: files[path] for path in paths if path in files}


def _id_in(files: Files, test: str) -> str:
    """Return the id of a test that is known as "Class.name" or "name", in the first file that
    defines it."""
    function = re.split(r"[.:]", test)[-1].partition("[")[0]
    for path, data in files.items():
        if f"def {function}(".encode() in data:
            return f"{path}::{test.replace('.', '::')}"
    return f"{next(iter(files))}::{test.replace('.', '::')}"


FORMATS: dict[str, Callable[[Row, Path], HarborTask]] = {
    "swe-bench": swe_bench,
    "swe-smith": swe_smith,
    "r2e-gym": r2e_gym,
}


def convert(rows: Path, form: str, repos: Path, into: Path) -> tuple[list[str], list[str]]:
    """Write the tasks of a JSONL file; return the names written, and the reasons for the others."""
    written: list[str] = []
    left_out: list[str] = []
    for number, line in enumerate(rows.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ConfigError("expected a JSON object")
            task = FORMATS[form](row, repos)
            write_folder(task, into / task.name.replace("/", "__"))
            written.append(task.name)
        except (ValueError, OSError) as error:  # ConfigError is a ValueError
            left_out.append(f"{rows}:{number}: {error}")
    return written, left_out


def generate(options: Options, split: Split, into: Path, *, num: int, seed: int) -> list[str]:
    """Write the first `num` tasks of a generator; return their names.

    Raises:
        ConfigError: there is no such generator, level or number, or a folder is there already.
    """
    if options.source not in GENERATORS:
        raise ConfigError(f"{options.source}: expected one of {', '.join(GENERATORS)}")
    if num < 1:
        raise ConfigError(f"--num {num}: expected 1 or more")
    tasks = task_source(split, seed=seed, options=options)
    written: list[str] = []
    for index in range(num):
        task = tasks[index]
        write_folder(make_task(task), into / task.id)
        written.append(task.id)
    return written


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 1 if a task was left out."""
    parser = argparse.ArgumentParser(prog="python -m arl_envs.harbor.adapters")
    parser.add_argument("format", choices=[*FORMATS, "terminal-bench", "generated"])
    parser.add_argument(
        "source", type=Path, help="a JSONL file, a folder of task folders, or bugs or chores"
    )
    parser.add_argument("--repos", type=Path, default=Path(), help="the folder of git mirrors")
    parser.add_argument("--into", type=Path, required=True, help="the dataset folder to write")
    drawn = parser.add_argument_group("generated tasks")
    drawn.add_argument("--level", type=int, default=1, help="of the tasks (default: 1)")
    drawn.add_argument("--num", type=int, default=100, help="number of tasks (default: 100)")
    drawn.add_argument("--seed", type=int, default=0, help="of the tasks (default: 0)")
    drawn.add_argument("--split", choices=get_args(Split), default="eval", help="default: eval")
    given = parser.parse_args(arguments)
    is_folder = given.format == "terminal-bench"
    written: list[str] = []
    left_out: list[str] = []
    if given.format == "generated":
        try:
            options = Options(source=str(given.source), level=given.level)
            written = generate(options, given.split, given.into, num=given.num, seed=given.seed)
        except (ConfigError, TypeError) as error:
            parser.error(str(error))
    elif not (given.source.is_dir() if is_folder else given.source.is_file()):
        parser.error(f"{given.source}: expected {'a folder' if is_folder else 'a file of rows'}")
    elif not is_folder:
        written, left_out = convert(given.source, given.format, given.repos, given.into)
    else:
        for folder in sorted(path.parent for path in given.source.rglob("task.yaml")):
            try:
                task = terminal_bench(folder)
                write_folder(task, given.into / folder.name)
                written.append(folder.name)
                if note := note_on(task):
                    sys.stderr.write(f"note: {note}\n")
            except (ValueError, OSError) as error:
                left_out.append(str(error))
    for reason in left_out:
        sys.stderr.write(f"left out: {reason}\n")
    sys.stdout.write(f"{len(written)} tasks written to {given.into}\n")
    return int(bool(left_out))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
