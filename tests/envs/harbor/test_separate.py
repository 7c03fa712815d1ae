"""Tests with an image of their own, artifacts, published images, and what `harbor init` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor.config import Artifact, read_config
from arl_envs.harbor.env import recipe_of, verifier_recipe

from tests.contracts.sandboxes import Opened
from tests.kit.cases import cases

from .kit import small_task, written
from .test_config import SCHEMA
from .test_env import END, call, played

DOCKERFILE = b"FROM ubuntu:24.04\nWORKDIR /check\nRUN echo built > mark\nCOPY . /tests/\n"
SEPARATE = {"environment_mode": "separate", "timeout_sec": 120.0}


def paying(condition: str) -> bytes:
    """A test.sh that pays if a condition holds."""
    return (
        f"#!/bin/sh\nfind /app /logs/artifacts -type f\nif {condition}; then pay=1; fi\n".encode()
        + (b"echo ${pay:-0} > /logs/verifier/reward.txt\n")
    )


def defaults(name: str) -> dict[str, Any]:
    """A section with the defaults of Harbor's schema, as `harbor init` writes it."""
    words = {"list": [], "dict": {}, "NetworkMode.PUBLIC": "public", "TaskOS.LINUX": "linux"}
    found: dict[str, Any] = {}
    for field, about in SCHEMA[name].items():
        text = about["default"]
        if text not in ("None", "required") and field != "schema_version":
            found[field] = words[text] if text in words else json.loads(text.lower())
    return found


def initial() -> dict[str, Any]:
    """The task.toml that `harbor init` writes: every default spelled out."""
    return {
        "schema_version": "1.4",
        "task": {"name": "org/answer", "version": "1.0.0", "authors": [], "keywords": []},
        "metadata": {},
        "artifacts": [],
        "verifier": {**defaults("VerifierConfig"), "environment_mode": "separate"},
        "agent": {"timeout_sec": 600.0},
        "environment": defaults("EnvironmentConfig"),
        "solution": {"env": {}},
    }


def test_every_default_of_harbor_is_accepted() -> None:
    assert initial()["environment"]["network_mode"] == "public"
    assert read_config(initial(), name="x").is_separate


@cases(
    "verifier, tests, own",
    [
        ({}, ("test.sh",), ""),
        ({}, ("test.sh", "Dockerfile"), ""),
        (SEPARATE, ("test.sh",), ""),
        (SEPARATE, ("test.sh", "Dockerfile"), "FROM ubuntu:24.04"),
        ({"environment": {}}, ("test.sh", "Dockerfile"), "FROM ubuntu:24.04"),
        ({"environment": {"docker_image": "python:3.12"}}, ("test.sh",), "FROM python:3.12"),
        ({"environment": {"workdir": "/there"}}, ("test.sh",), "FROM python:3.11-slim"),
    ],
)
def test_the_image_of_tests(verifier: dict[str, Any], tests: tuple[str, ...], own: str) -> None:
    task = small_task(
        tests={name: DOCKERFILE if name == "Dockerfile" else b"#!/bin/sh\n" for name in tests},
        config={"verifier": verifier},
    )
    recipe = verifier_recipe(task, read_config(task.config, name="x"))
    if not own:
        assert recipe is None
        return
    assert recipe is not None
    lines = recipe.files["Dockerfile"].decode() if recipe.files else f"FROM {recipe.published}"
    assert lines.startswith(own)


def test_a_published_image_gets_the_files_of_the_environment() -> None:
    task = small_task(
        environment={"trial/log.txt": b"x"},
        config={"environment": {"docker_image": "python:3.13-slim", "workdir": "/app"}},
    )
    recipe = recipe_of(task, read_config(task.config, name="x"))
    expected = b"FROM python:3.13-slim\nWORKDIR /app\nCOPY environment/ ./\n"
    assert recipe.files == {"environment/trial/log.txt": b"x", "Dockerfile": expected}


@cases(
    "pattern, path, there",
    [
        ("*.log", "/app/out/a.log", False),
        ("*.log", "/app/out/deep/a.log", False),
        ("cache", "/app/out/deep/cache/a", False),
        ("./cache/", "/app/out/cache/a", False),
        ("deep/*", "/app/out/deep/er/a", False),
        ("cache", "/app/out/cached", True),
        ("out", "/app/out/a", True),
        ("*.log", "/app/other/a.txt", None),
    ],
)
def test_artifacts_leave_out_what_tar_would(pattern: str, path: str, there: bool | None) -> None:
    for source in ("/app/out", "out/", "/app/./out"):
        assert Artifact(source=source, exclude=(pattern,)).has(path, "/app") is bool(there)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_separate_tests_get_artifacts_alone(world: Opened, tmp_path: Path) -> None:
    condition = (
        '[ "$PWD $(cat mark)" = "/check built" ] && [ "$(cat /app/answer.txt)" = 42 ] '
        "&& [ -e /app/out/a ] && [ ! -e /app/out/b.log ] && [ ! -e /app/private ] "
        "&& [ ! -e /app/README.md ] && [ -e /logs/artifacts/note ] && [ -e /tests/Dockerfile ]"
    )
    config = {
        **initial(),
        "artifacts": ["/app/answer.txt", {"source": "/app/out", "exclude": ["*.log"]}],
    }
    tests = {"Dockerfile": DOCKERFILE, "test.sh": paying(condition)}
    command = (
        "mkdir out; touch out/a out/b.log private out/conftest.py /logs/artifacts/note; "
        "echo 42 > answer.txt; [ ! -e /tests ]"
    )
    solution = {"solve.sh": f"#!/bin/sh\n{command}\n".encode()}
    path = written(tmp_path / "a", config=config, tests=tests, solution=solution)
    *_, last = played(world, path)
    assert last.reward == 1.0, last.info
    assert "+42" in last.info["patch"]
    assert list(last.info["dropped_files"]) == ["out/conftest.py"]
    assert played(world, path, END)[-1].reward == 0.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_separate_tests_without_an_image_run_in_the_tasks(world: Opened, tmp_path: Path) -> None:
    condition = (
        '[ "$PWD" = /app ] && [ -e README.md ] && [ "$(cat answer.txt)" = 42 ] && [ ! -e x ]'
    )
    config = {"verifier": SEPARATE, "artifacts": ["answer.txt"]}
    path = written(tmp_path / "a", config=config, tests={"test.sh": paying(condition)})
    said = call("bash", command="echo 42 > answer.txt; touch x; rm README.md")
    assert played(world, path, said, END)[-1].reward == 1.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_published_images_and_artifacts_elsewhere(world: Opened, tmp_path: Path) -> None:
    config = {
        "environment": {"docker_image": "python:3.13-slim", "workdir": "/app"},
        "artifacts": [{"source": "/app/result.json", "destination": "result.json"}, "/data"],
    }
    condition = '[ "$(cat result.json /data/a/b /logs/artifacts/c)" = "$(printf \'x\\ny\\nz\')" ]'
    path = written(
        tmp_path / "a",
        config=config,
        environment={"given/in.txt": b"x\n"},
        tests={"test.sh": paying(condition)},
        solution={
            "solve.sh": b"#!/bin/sh\nmkdir -p /data/a; cp given/in.txt result.json\n"
            b"echo y > /data/a/b; echo z > /logs/artifacts/c\n"
        },
    )
    assert played(world, path)[-1].reward == 1.0
    assert played(world, path, END)[-1].reward == 0.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_solution_is_judged_with_its_artifacts(world: Opened, tmp_path: Path) -> None:
    test = b"#!/bin/sh\n[ -e /data/answer ] && echo 1 > /logs/verifier/reward.txt\n"
    path = written(
        tmp_path / "a",
        config={"artifacts": ["/data"]},
        tests={"test.sh": test},
        solution={"solve.sh": b"#!/bin/sh\nmkdir -p /data; touch /data/answer\n"},
    )
    (last,) = played(world, path, END)
    assert (last.reward, last.info["verifier"]) == (0.0, "no_reward")
