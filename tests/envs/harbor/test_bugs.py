"""Planted bugs: told by the cases, undone by the solution, the same in every process."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from arl_envs.harbor.bugs import LEVELS, make, task_source
from arl_envs.harbor.bugs.catalog import LIBRARIES
from arl_envs.harbor.bugs.library import FOLDER, library_program
from arl_envs.harbor.bugs.mutations import EASY, KINDS, mutations_of
from arl_envs.harbor.bugs.program import Endless, Running, differing
from arl_envs.harbor.bugs.short import SHORTS, short_program
from arl_envs.harbor.bugs.tasks import bugs_of, changed_text, with_bugs
from arl_envs.harbor.task import HarborTask

from agentgym_rl import ConfigError, EnvError, Task

from .stand_in import Place

PER_LEVEL = {1: 40, 2: 6, 3: 4, 4: 4}
"""The tasks of each level that are looked at in memory."""


@pytest.fixture(scope="module")
def tasks() -> list[tuple[Task, HarborTask]]:
    """Tasks of all levels with their folders."""
    found = [
        task_source("train", seed=3, level=of)[n] for of in LEVELS for n in range(PER_LEVEL[of])
    ]
    return [(task, make(task)) for task in found]


def edited(made: HarborTask) -> dict[str, str]:
    """Return the sources of a task after the edits of its solution, each of which fits once."""
    texts = {path.removeprefix("repo/"): data.decode() for path, data in made.environment.items()}
    for step in json.loads(made.solution["steps.json"]):
        if step["name"] == "edit":
            given = step["arguments"]
            assert texts[given["path"]].count(given["old"]) == 1, given
            texts[given["path"]] = texts[given["path"]].replace(given["old"], given["new"])
    return texts


def test_the_hidden_cases_tell_every_bug_and_the_edits_undo_it(tasks):
    wrong = []
    for task, made in tasks:
        program, bugs = bugs_of(task.data)
        bad = {**program.modules, **with_bugs(program, bugs)}
        told = all(
            differing(
                program.modules, {**program.modules, **with_bugs(program, [bug])}, program.hidden
            )
            for bug in bugs
        )
        after = edited(made)
        back = all(after[path] == text for path, text in program.modules.items())
        cases = json.loads(made.tests["cases.json"])["cases"]
        running = Running(bad)
        left = [case for case in cases if running.outcomes(case["steps"]) != case["expected"]]
        if not told or not back or not left:
            wrong.append((task.id, told, back, len(left)))
    assert wrong == []


def test_visible_tests_fail_only_where_the_level_says_so(tasks):
    wrong = []
    for task, made in tasks:
        program, bugs = bugs_of(task.data)
        bad = {**program.modules, **with_bugs(program, bugs)}
        names = {n for n, cases in program.shown.items() if differing(program.modules, bad, cases)}
        text = made.environment["repo/tests/test_program.py"].decode()
        present = {name for name in program.shown if f"def {name}(" in text}
        failing = present & names
        level = task.data["level"]
        named = any(name in made.instruction for name in names)
        if bool(failing) != (level < 4) or named != (level < 3) or not present:
            wrong.append((task.id, sorted(failing), named))
    assert wrong == []


def test_all_other_bytes_stay(tasks):
    for task, made in tasks:
        program, bugs = bugs_of(task.data)
        for path, text in program.modules.items():
            now = made.environment[f"repo/{path}"].decode()
            lines = [
                n
                for n, (a, b) in enumerate(zip(text.split("\n"), now.split("\n"), strict=True))
                if a != b
            ]
            assert len(lines) == len([bug for bug in bugs if bug.path == path]), task.id


def test_level_1_is_short_and_says_its_program(tasks):
    for task, made in tasks:
        if task.data["level"] == 1:
            ((path, text),) = with_bugs(*bugs_of(task.data)).items()
            assert text in made.instruction
            assert text.count("\n") <= 12
            assert len(made.instruction) < 500, made.instruction
            assert path in made.instruction


def test_level_1_has_very_many_tasks():
    programs = [short_program(variant).modules for variant in range(3000)]
    texts = {str(modules) for modules in programs}
    assert len(texts) > 2800  # of 3,000 draws: at least 20,000 programs, each with dozens of bugs
    assert {next(iter(short_program(v).shown)) for v in range(200)} == {
        f"test_{s.name}" for s in SHORTS
    }


def test_a_random_edit_of_one_line_seldom_solves_level_1():
    rng = random.Random(5)
    solved = tried = 0
    for number in range(30):
        program, bugs = bugs_of(task_source("train", seed=9, level=1)[number].data)
        ((path, text),) = with_bugs(program, bugs).items()
        sites = [one for one in mutations_of(path, text) if one.kind in EASY]
        for guess in rng.sample(sites, min(8, len(sites))):
            tried += 1
            try:
                solved += not differing(
                    program.modules, {path: guess.applied(text)}, program.hidden
                )
            except (Endless, NameError):
                continue
    assert tried > 200
    assert solved / tried <= 0.1, (solved, tried)


def test_every_library_and_kind_of_bug_has_tasks():
    kinds: Counter[str] = Counter()
    few = {}
    for name, library in LIBRARIES.items():
        program = library_program(library, 1)
        own: Counter[str] = Counter()
        sites = [one for path, text in program.modules.items() for one in mutations_of(path, text)]
        rng = random.Random(name)
        by_kind = {kind: [one for one in sites if one.kind == kind] for kind in KINDS}
        for kind, of_kind in by_kind.items():
            for bug in rng.sample(of_kind, min(2, len(of_kind))):
                try:
                    bad = {**program.modules, bug.path: bug.applied(program.modules[bug.path])}
                    own[kind] += bool(differing(program.modules, bad, program.hidden))
                except (Endless, SyntaxError, NameError):
                    continue
        if len(+own) < 8:
            few[name] = sorted(+own)
        kinds += own
    assert few == {}
    assert sorted(kinds) == sorted(KINDS), set(KINDS) - set(kinds)
    assert len(LIBRARIES) >= 10
    assert len(KINDS) >= 12


def test_the_libraries_are_right_in_every_variant():
    """No hidden case may end in a programming error of ours, and all values have a plain form."""
    wrong = []
    for library in LIBRARIES.values():
        for variant in range(6):
            program = library_program(library, variant)
            running = Running(program.modules)
            for case in program.hidden:
                for step, said in zip(case, running.outcomes(case), strict=True):
                    if "unfit" in said or said.get("raises") in (
                        "NameError",
                        "AttributeError",
                        "TypeError",
                    ):
                        wrong.append((library.name, variant, step, said))
    assert wrong == []


def test_nothing_in_the_libraries_depends_on_luck():
    forbidden = {"random", "time", "datetime", "os", "id", "hash", "set", "frozenset", "object"}
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Import | ast.Set | ast.SetComp), path
            assert not isinstance(node, ast.ImportFrom) or node.level == 1, path
            assert not isinstance(node, ast.Name) or node.id not in forbidden, (path, node.id)


DIGEST = """
import hashlib
from arl_envs.harbor.bugs import make, task_source
digest = hashlib.sha256()
for level in (1, 2, 3, 4):
    for split in ("train", "eval"):
        task = task_source(split, seed=1, level=level)[0]
        digest.update(repr((task, make(task))).encode())
print(digest.hexdigest())
"""


def test_tasks_are_the_same_bytes_in_every_process():
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            timeout=240,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_no_program_is_in_both_splits():
    for level, count in ((1, 60), (2, 5)):
        texts = {
            split: {
                changed_text(*bugs_of(task_source(split, seed=seed, level=level)[n].data))
                for seed in (0, 1)
                for n in range(count)
            }
            for split in ("train", "eval")
        }
        assert not texts["train"] & texts["eval"]


def without_tests(place: Place) -> None:
    for path in (place.app / "tests").glob("*.py"):
        path.write_text("")


def with_an_echo(place: Place) -> None:
    (place.app / "answer.txt").write_text(place.task.instruction)


def with_no_source(place: Place) -> None:
    for path in place.app.rglob("*.py"):
        path.unlink()


@pytest.mark.parametrize("level", LEVELS)
def test_only_the_oracle_is_paid(tmp_path: Path, level: int):
    made = make(task_source("eval", seed=2, level=level)[level])
    place = Place(tmp_path / "oracle", made)
    place.solve()
    assert place.verify()["reward"] == 1.0
    place = Place(tmp_path / "steps", made)
    said = place.do(json.loads(made.solution["steps.json"]))
    assert said[-1].rstrip().endswith("OK"), said
    assert place.verify()["reward"] == 1.0
    for cheat in (lambda _: None, without_tests, with_an_echo, with_no_source):
        place = Place(tmp_path / "cheat", made)
        cheat(place)
        assert place.verify()["reward"] == 0.0, cheat


def test_a_broken_index_split_level_or_data_is_refused():
    with pytest.raises(ConfigError, match="allowed: train, eval"):
        task_source("test", seed=0, level=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="allowed: 1, 2, 3, 4"):
        task_source("train", seed=0, level=9)
    with pytest.raises(IndexError):
        task_source("train", seed=0, level=1)[-1]
    task = task_source("train", seed=0, level=1)[0]
    for broken in ({}, {**task.data, "bugs": []}, {**task.data, "variant": 7}):
        with pytest.raises(EnvError, match="no output of the generator bugs"):
            make(Task("x", 0, broken))
