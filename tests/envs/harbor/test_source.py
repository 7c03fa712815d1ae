"""The example tasks of the package `harbor`, completed as their users are told to, and played.

ARL_HARBOR_SOURCE names the folder of the unpacked package, which has `cli/template-task`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor.env import HarborEnv
from arl_envs.harbor.tasks import FolderTasks

from agentgym_rl import ConfigError, InfraError
from tests.contracts.sandboxes import Opened

from .kit import toml
from .test_env import played
from .test_separate import initial

SOURCE = Path(os.environ.get("ARL_HARBOR_SOURCE", ""))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not (SOURCE / "cli/template-task/task.toml").is_file(),
        reason="ARL_HARBOR_SOURCE names no folder of the unpacked package harbor",
    ),
]
HELLO = "#!/bin/bash\necho hello > hello.txt\n"
PAYS = """
if [ "$(cat /app/hello.txt)" = hello ]; then pay=1; else pay=0; fi
echo $pay > /logs/verifier/reward.txt
"""


def put(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def init(
    folder: Path, mode: str, *, with_pytest: bool, config: dict[str, Any] | None = None
) -> None:
    """A task as `harbor init` leaves it, with a text, a solution and a test."""
    template = SOURCE / "cli/template-task"
    shutil.copytree(template / "environment", folder / "environment")
    shutil.copytree(template / ("pytest-tests" if with_pytest else "tests"), folder / "tests")
    if mode == "shared":
        (folder / "tests/Dockerfile").unlink()
        if with_pytest:
            shutil.copy(template / "shared-pytest-tests/test.sh", folder / "tests/test.sh")
    if not with_pytest:
        (folder / "tests/test.sh").write_text((folder / "tests/test.sh").read_text() + PAYS)
    written = {**initial(), "artifacts": ["/app/hello.txt"], **(config or {})}
    written["verifier"] = {**written["verifier"], "environment_mode": mode}
    text = "Write hello into hello.txt.\n"
    put(folder, {"task.toml": toml(written), "instruction.md": text, "solution/solve.sh": HELLO})


def untouched(folder: Path) -> None:
    """The template as it is."""
    shutil.copytree(SOURCE / "cli/template-task", folder)


def steps(folder: Path) -> None:
    """A task of `harbor init --steps 2`."""
    init(folder, "shared", with_pytest=False, config={"steps": [{"name": "a"}, {"name": "b"}]})


def adapter(folder: Path) -> None:
    """The template for tasks of other benchmarks, its names filled in."""
    shutil.copytree(SOURCE / "cli/template-adapter/task-template", folder)
    text = (folder / "task.toml").read_text().replace("{{ADAPTER_ID}}__{task_id}", "x")
    put(folder, {"task.toml": text, "instruction.md": "Do it.\n"})


def wrapper(name: str, result: str, found: Any, *, criteria: bool = True) -> Callable[[Path], None]:
    """The builder of a task for reviewers: a file of JSON is the answer."""

    def build(folder: Path) -> None:
        shutil.copytree(SOURCE / name, folder)
        answer = json.dumps(found)
        files = {
            "instruction.md": f"Read task/instruction.md, and write {result}.\n",
            "environment/task/instruction.md": "the task under review\n",
            "solution/solve.sh": f"#!/bin/sh\nls task/*.md && echo '{answer}' > {result}\n",
        }
        put(folder, files | ({"tests/criteria.json": '["clear"]'} if criteria else {}))

    return build


def compiled(folder: Path, *, with_schema: bool = False) -> None:
    """A task of the compiler, whose verifier promotes an artifact to the reward."""
    template = SOURCE / "compile/compiled-task-template/tests"
    shutil.copytree(template, folder / "tests")
    script = "auto-verify-artifacts-with-schemas.sh" if with_schema else "auto-verify-artifacts.sh"
    shutil.copy(template / script, folder / "tests/test.sh")
    config = {**initial(), "artifacts": ["/app/out.json"]}
    config["verifier"] = {"timeout_sec": 600.0}
    config["environment"] |= {"docker_image": "python:3.13-slim", "workdir": "/app"}
    files = {
        "task.toml": toml(config),
        "instruction.md": "Write out.json.\n",
        "tests/required-artifacts.txt": "/app/out.json\n",
        "tests/reward-artifact.txt": "/app/out.json\n",
        "tests/artifact-schema-checks.json": "[]",
        "solution/solve.sh": "#!/bin/sh\necho '{\"reward\": 1}' > out.json\n",
    }
    put(folder, files)


CHECKED = {"clear": {"outcome": "pass", "explanation": "it is"}}
EXAMPLES: dict[str, tuple[Callable[[Path], None], str]] = {
    "template-task, untouched": (untouched, "instruction.md is empty"),
    "template-task, separate": (lambda at: init(at, "separate", with_pytest=False), ""),
    "template-task, shared": (lambda at: init(at, "shared", with_pytest=False), ""),
    "template-task, separate, pytest": (
        lambda at: init(at, "separate", with_pytest=True),
        "COPY --from=ghcr.io/astral-sh/uv",
    ),
    "template-task, shared, pytest": (
        lambda at: init(at, "shared", with_pytest=True),
        "pay nothing for its solution either",
    ),
    "template-task, steps": (steps, "steps: tasks of several steps are not played"),
    "template-adapter": (adapter, "RUN apt-get update"),
    "annotate-task-template": (
        wrapper(
            "cli/annotator/annotate-task-template",
            "annotate-result.json",
            {"readme": "r", "description": "d"},
            criteria=False,
        ),
        "",
    ),
    "analyze-task-template": (
        wrapper(
            "analyze/analyze-task-template", "analysis.json", {"summary": "s", "checks": CHECKED}
        ),
        "",
    ),
    "check-task-template": (
        wrapper("analyze/check-task-template", "check-result.json", CHECKED),
        "",
    ),
    "compiled-task-template": (compiled, ""),
    "compiled-task-template, schemas": (
        lambda at: compiled(at, with_schema=True),
        "pay nothing for its solution either",
    ),
}
"""The examples: how they are completed, and why they cannot be played ("": they can)."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_paid_or_say_why_not(name: str, world: Opened, tmp_path: Path) -> None:
    build, why = EXAMPLES[name]
    build(tmp_path / "task")
    loads, said, reward = False, "", None
    try:
        source = HarborEnv.task_source("train", seed=0, source=str(tmp_path / "task"))
        loads = isinstance(source, FolderTasks)
        reward = played(world, tmp_path / "task")[-1].reward
    except (ConfigError, InfraError) as error:
        said = str(error)
    print(f"| {name} | {'loads' if loads else 'refused'} | {reward} | {said:.200} |")
    assert (why in said) if why else (loads and reward == 1.0), said
