"""Task folders of Terminal-Bench 1 as tasks in Harbor's format.

The tests' output is read by the task's own parser (`arl_results.py`), by Terminal-Bench's rules.
The tests that a run has to name come from the task's files, which are read here and not run.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym_rl import ConfigError
from agentgym_rl.core import near_match

from . import arl_results
from .config import read_config
from .folder import problem_of, read_files
from .own import standalone
from .task import HarborTask

_TEST_SH = '#!/bin/sh\nexec python3 -I -B "$(dirname "$0")/arl_results.py" "$@"\n'
_CHOOSES = re.compile(r"::|\s(?:-k|-m(?!\s*(?:pytest|pip|uv|venv))|--deselect|--ignore)\b")
"""The options by which a run leaves tests of a file out."""


def terminal_bench(folder: Path) -> HarborTask:
    """Return the task of a Terminal-Bench 1 folder.

    Raises:
        ConfigError: it has several services, a solution.yaml, or a part is missing.
    """
    import yaml  # of huggingface_hub; only this format needs it

    name = folder.name
    try:
        files = dict(read_files(folder))
        task = yaml.safe_load(files.pop("task.yaml"))
        script = files.pop("run-tests.sh")
        compose = yaml.safe_load(files.pop("docker-compose.yaml", b"services: {client: {}}"))
        instruction = str(task["instruction"])
        services: Mapping[str, Any] = compose["services"]
        limits = {
            "agent": float(task.get("max_agent_timeout_sec", 360.0)),
            "verifier": float(task.get("max_test_timeout_sec", 60.0)),
        }
        if len(services) != 1:
            raise ConfigError(f"task {name}: it has several services: {', '.join(services)}")
        (service,) = services.values()
        lines = list(_compose_lines(service or {}, name))
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OSError, yaml.YAMLError) as error:
        raise ConfigError(f"task {name}: no Terminal-Bench task: {error!r:.200}") from error
    if "solution.yaml" in files:
        raise ConfigError(f"task {name}: solution.yaml is not played; write a solution.sh")
    if "Dockerfile" not in files:
        raise ConfigError(f"task {name}: Dockerfile is missing")
    for line in lines:
        files["Dockerfile"] = files["Dockerfile"].rstrip() + f"\n{line}\n".encode()
    tests = {
        path.removeprefix("tests/"): files.pop(path)
        for path in [*files]
        if path.startswith("tests/")
    }
    tests["run-tests.sh"] = script
    solution = {"solve.sh": files.pop("solution.sh")} if "solution.sh" in files else {}
    order = _order(task.get("parser_name", "pytest"), {**files, **solution}, tests, name)
    if not order["can_have_results"]:
        solution = {}  # it proves nothing, as nothing is ever paid
    if taken := sorted(_OWN & tests.keys()):
        raise ConfigError(f"task {name}: tests/{taken[0]}: a file of the conversion has this name")
    tests |= standalone("arl_results.py", "arl_judge.py")
    if order["parser"] == "pytest":
        tests.setdefault("conftest.py", standalone("arl_witness.py")["arl_witness.py"])
    tests |= {"test.sh": _TEST_SH.encode(), arl_results.ORDER: json.dumps(order).encode()}
    config = {
        "schema_version": "1.4",
        "metadata": {
            "arl_nonce": True,
            **{key: str(task[key]) for key in ("difficulty", "category") if key in task},
        },
        **{section: {"timeout_sec": limit_s} for section, limit_s in limits.items()},
    }
    return checked(HarborTask(name, f"{instruction.strip()}\n", config, files, tests, solution))


def note_on(task: HarborTask) -> str:
    """Return a note for the user about a task of `terminal_bench`; "": none."""
    order = json.loads(task.tests[arl_results.ORDER])
    if order["can_have_results"]:
        return ""
    return (
        f"task {task.name}: nobody is ever paid: its parser {order['parser']} looks for "
        f"{arl_results.SIGNS[order['parser']][-1]!r} in the output, and no file of the task prints "
        "that; Terminal-Bench never counts it as solved either"
    )


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OWN = {"test.sh", "arl_results.py", "arl_judge.py", arl_results.ORDER}


def _order(
    parser: Any, files: Mapping[str, bytes], tests: Mapping[str, bytes], name: str
) -> dict[str, Any]:
    """Return the data about a task that `arl_results.py` needs.

    Raises:
        ConfigError: there is no such parser.
    """
    signs = arl_results.SIGNS
    if not isinstance(parser, str) or parser not in signs:
        raise ConfigError(
            f"task {name}: task.yaml: parser_name: got {parser!r:.60}; "
            f"allowed: {', '.join(signs)}{near_match(str(parser), signs)}"
        )
    texts = [data.lower() for data in (*files.values(), *tests.values())]
    tested = b"\n".join(data.lower() for data in tests.values())
    return {
        "parser": parser,
        "can_have_results": any(
            sign.lower().encode() in text for sign in signs[parser] for text in texts
        ),
        "allowed": [
            status for status, word in (("SKIPPED", b"skip"), ("XFAIL", b"xfail")) if word in tested
        ],
        "tests": _expected(tests) if parser == "pytest" else {},
    }


def _expected(tests: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return the tests that a run has to name, by the name of their file: those of the files that
    run-tests.sh names, or else of all; none if it chooses among them."""
    script = tests["run-tests.sh"].decode("utf-8", "replace")
    found: dict[str, list[str]] = {}
    if _CHOOSES.search(script):
        return found
    for path, data in tests.items():
        file = path.rpartition("/")[2]
        if re.fullmatch(r"test_.*\.py|.*_test\.py", file):
            found[file] = [*found.get(file, []), *_tests_of(data)]
    listed = {file: names for file, names in found.items() if file in script}
    return listed or found


def _tests_of(data: bytes) -> Iterator[str]:
    """Yield the tests that a file of pytest defines in any case: those below an `if` may be left
    out."""
    try:
        body = ast.parse(data).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for each in body:
        if isinstance(each, ast.ClassDef):
            inner = [one for one in each.body if isinstance(one, _FUNCTIONS)]
            names = {one.name for one in inner}
            if each.name.startswith("Test") and not each.decorator_list and "__init__" not in names:
                yield from (f"{each.name}::{one.name}" for one in inner if _is_test(one))
        elif isinstance(each, _FUNCTIONS) and _is_test(each):
            yield each.name


def _is_test(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a test that runs in any case: a decorator other than the values
    of parameters may turn it into something else."""
    plain = all("parametrize" in ast.unparse(each) for each in function.decorator_list)
    return function.name.startswith("test") and plain


def checked(task: HarborTask) -> HarborTask:
    """Return a task of another format if it can be played.

    Raises:
        ConfigError: it cannot; the message has the reason.
    """
    if problem := problem_of(task):
        raise ConfigError(f"task {task.name}: {problem}")
    read_config(task.config, name=task.name)
    return task


def _compose_lines(service: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the lines of a Dockerfile that are equivalent to a service of a compose file.

    Raises:
        ConfigError: a field has no equivalent.
    """
    ours = {"build", "image", "container_name", "command", "volumes", "expose", "entrypoint"}
    for key, value in service.items():
        if key == "working_dir":
            yield f"WORKDIR {value}"
        elif key == "environment":
            given = value if isinstance(value, dict) else dict(v.partition("=")[::2] for v in value)
            for variable, text in given.items():
                if "{T_BENCH_" not in str(text):  # those of Terminal-Bench's own runner
                    yield _variable(variable, str(text), name)
        elif key not in ours:
            raise ConfigError(f"task {name}: docker-compose.yaml: {key} is not supported")


def _variable(key: str, value: str, name: str) -> str:
    """Return the line of a Dockerfile for a variable of a compose file."""
    if "$" in value.replace("$$", "") or "\n" in value or not key.isidentifier():
        raise ConfigError(
            f"task {name}: docker-compose.yaml: environment: got {key}={value!r:.60}; expected a "
            "name and a value of one line, without variables of the host"
        )
    text = json.dumps(value.replace("$$", "$"), ensure_ascii=False).replace("$", "\\$")
    return f"ENV {key}={text}"
