"""Terminal chores: done by their solution, not by nothing, the same in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from arl_envs.harbor.chores import LEVELS, make, task_source
from arl_envs.harbor.chores.tasks import CHORES, chore_of
from arl_envs.harbor.harness import holds

from agentgym_rl import ConfigError, EnvError, Task

from .stand_in import Place


def task_of(chore: str, level: int, variant: int = 7) -> Task:
    """Return a task of one kind."""
    data = {"kind": "chores", "level": level, "chore": chore, "variant": variant}
    return Task(f"{chore}-{level}", variant, data)


def passed(place: Place) -> bool:
    """Return whether all checks of a task hold, in this process."""
    checks = json.loads(place.task.tests["cases.json"])["checks"]
    return all(holds(check, str(place.app)) for check in checks)


@pytest.mark.parametrize("level", LEVELS)
def test_every_chore_is_done_by_its_steps_and_not_by_nothing(tmp_path: Path, level: int):
    wrong = {}
    for name in CHORES:
        made = make(task_of(name, level, 11 + level))
        place = Place(tmp_path / name, made)
        nothing = passed(place)
        said = place.do(json.loads(made.solution["steps.json"]))
        if nothing or not passed(place):
            wrong[name] = (nothing, made.instruction, said[1:])
    assert wrong == {}


def test_doing_nothing_is_never_enough(tmp_path: Path):
    """Every variant needs work: most are looked at without their commands, which only prepare."""
    enough = []
    for name in CHORES:
        for variant in range(25):
            chore = chore_of(task_of(name, 1 + variant % 3, variant).data)
            missing = [
                check
                for check in chore.checks
                if check["is"] == "text"
                and chore.files.get(check["path"], b"").decode().rstrip() != check["text"].rstrip()
            ]
            others = [check for check in chore.checks if check["is"] not in ("text", "tree")]
            if not missing and not others:
                enough.append((name, variant))
    assert enough == []


@pytest.mark.parametrize("name", ["rename_ending", "log_to_json"])
def test_the_harness_pays_the_oracle_alone(tmp_path: Path, name: str):
    made = make(task_of(name, 2))
    place = Place(tmp_path / "oracle", made)
    place.solve()
    assert place.verify()["reward"] == 1.0
    place = Place(tmp_path / "nothing", made)
    (place.app / "answer.txt").write_text(made.instruction)
    assert place.verify()["reward"] == 0.0


def test_a_chore_done_in_part_is_not_done(tmp_path: Path):
    made = make(task_of("replace_word", 2))
    place = Place(tmp_path / "x", made)
    place.solve()
    assert passed(place)
    changed = next(place.app.rglob("*.md"))
    changed.write_text(changed.read_text() + "more\n")
    assert not passed(place)


def test_a_file_too_many_is_seen(tmp_path: Path):
    made = make(task_of("unpack_some", 1))
    place = Place(tmp_path / "x", made)
    place.solve()
    assert passed(place)
    (next(place.app.glob("*/out")) / "more.bin").write_text("")
    assert not passed(place)


def test_answers_are_not_in_the_files_of_the_agent():
    for name in CHORES:
        made = make(task_of(name, 2))
        assert not [path for path in made.environment if "cases" in path or "tests/" in path]
        assert set(made.tests) == {"test.sh", "harness.py", "arl_judge.py", "cases.json"}


def test_all_kinds_are_drawn_and_none_is_in_both_splits():
    assert len(CHORES) >= 12
    texts = {}
    kinds: Counter[str] = Counter()
    for split in ("train", "eval"):
        data = [task_source(split, seed=s, level=1)[n].data for s in (0, 1) for n in range(100)]
        kinds.update(one["chore"] for one in data)
        texts[split] = {chore_of(one).instruction for one in data}
    assert not texts["train"] & texts["eval"]
    assert set(kinds) == set(CHORES)
    assert len(texts["train"]) > 190


DIGEST = """
import hashlib
from arl_envs.harbor.chores import make, task_source
digest = hashlib.sha256()
for n in range(60):
    task = task_source("eval", seed=1, level=1 + n % 3)[n]
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


def test_a_broken_index_split_level_or_data_is_refused():
    with pytest.raises(ConfigError, match="allowed: train, eval"):
        task_source("test", seed=0, level=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="allowed: 1, 2, 3"):
        task_source("train", seed=0, level=4)
    with pytest.raises(IndexError):
        task_source("train", seed=0, level=1)[-1]
    for broken in ({}, {"level": 1, "chore": "none", "variant": 1}):
        with pytest.raises(EnvError, match="no output of the generator chores"):
            make(Task("x", 0, broken))
