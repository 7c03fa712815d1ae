"""Task folders of Terminal-Bench 1 as tasks in Harbor's format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym_rl import ConfigError

from .config import read_config
from .folder import problem_of, read_files
from .task import HarborTask


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
    tests["test.sh"] = (
        b"#!/bin/bash\nexport TEST_DIR=/tests\nif bash /tests/run-tests.sh; then pass=1; else "
        b"pass=0; fi\necho $pass > /logs/verifier/reward.txt\n"
    )
    solution = {"solve.sh": files.pop("solution.sh")} if "solution.sh" in files else {}
    config = {
        "schema_version": "1.4",
        "metadata": {key: str(task[key]) for key in ("difficulty", "category") if key in task},
        **{section: {"timeout_sec": limit_s} for section, limit_s in limits.items()},
    }
    return checked(HarborTask(name, f"{instruction.strip()}\n", config, files, tests, solution))


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
    """Yield the lines of a Dockerfile that do what a service of a compose file says.

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
