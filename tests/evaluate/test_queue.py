"""Evaluations on schedule: when they are due, what they owe after a crash, what plays them."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentgym_rl.config import Config, dump_toml, load_config
from agentgym_rl.controller import Plan
from agentgym_rl.controller.schedule import Due
from agentgym_rl.core import ConfigError
from agentgym_rl.evaluate import EvalQueue, Evaluator
from agentgym_rl.gym import NO_SERVICES
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.report import make_progress
from agentgym_rl.storage import EpisodeReader, EvalRecord, EvalRecords, Recovered, version_name
from agentgym_rl.weights import write_version
from tests.kit.cases import cases
from tests.kit.versions import part_of

STEPS = 9


def config(**settings) -> Config:
    return load_config(overrides={"steps": STEPS, "eval.num_tasks": 3, **settings})


class Folders:
    """A run's folder and its versions."""

    def __init__(self, root) -> None:
        self.run, self.versions = root / "run", root / "versions"
        self.records = EvalRecords(self.run)
        for folder in (self.run, self.versions):
            folder.mkdir()

    def queue(self, step: int = 0, incarnation: int = 0) -> EvalQueue:
        recovered = Recovered(step=step, incarnation=incarnation)
        queue = EvalQueue(self.run, self.versions, steps=STEPS, scheduled=True, recovered=recovered)
        queue.recover()
        return queue

    def publish(self, queue: EvalQueue, version: int, parameters: str, incarnation=0) -> None:
        """As the trainer does, whose file is gone soon after."""
        folder = self.version(version_name(version, incarnation=incarnation), parameters)
        queue.published(version, parameters, due=version % 2 == 0 or queue.owed(version))
        shutil.rmtree(folder)

    def version(self, name: str, parameters: str, *, at: Path | None = None) -> Path:
        folder = (at or self.versions) / name
        folder.mkdir()
        (folder / "part").write_text(parameters)
        return folder

    def statuses(self) -> dict[int, str]:
        return {version: record.status for version, record in self.records.read().items()}


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path)


def kept(queue: EvalQueue) -> list[int]:
    """What waits with its weights, once the queue is closed."""

    async def drain() -> list[int]:
        queue.close()
        await queue.keep()
        found = []
        while (version := await queue.next()) is not None:
            found.append(version)
        return found

    return asyncio.run(drain())


def plan_of(asked: Config, **clock) -> Plan:
    return Plan(asked.trainer, asked.eval, steps=asked.steps, **clock)


def test_steps_and_minutes_make_a_plan():
    now = [0.0]
    asked = {"eval.every": 3, "eval.every_minutes": 2, "trainer.checkpoint_every_minutes": 1}
    plan = plan_of(config(**asked), clock=lambda: now[0])
    found = []
    for done in range(1, 10):
        now[0] += 50
        found.append(plan.after(done, owed=done == 4))
    assert [d.evaluation for d in found] == [0, 0, 1, 1, 0, 1, 0, 0, 0]
    assert [d.checkpoint for d in found] == [0, 1, 0, 1, 0, 1, 0, 1, 1]


def test_what_is_evaluated_is_saved_where_the_best_are_to_stay():
    best = {"trainer.keep_best": 1, "trainer.best_metric": "-eval/turns"}
    plan = plan_of(config(**{"eval.every": 2}, **best))
    assert [plan.after(done) for done in (1, 2)] == [Due(False, False), Due(True, True)]


@cases(
    "settings, said",
    [
        ({"eval.num_tasks": 0}, "num_tasks is 0"),
        ({"engine.type": "vllm", "weights.transport": "gloo"}, "need weights.transport 'shm'"),
        ({"engine.type": "vllm", "engine.urls": "http://a:1"}, "servers that somebody else starts"),
        ({"engine.type": "vllm", "engine.gpus": "[0]"}, "engine.gpus needs 2 GPUs"),
    ],
    ids=["tasks", "transport", "urls", "gpus"],
)
def test_a_schedule_that_cannot_be_kept_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        config(**{"eval.every": 2}, **settings)


def test_versions_wait_with_their_weights(folders):
    queue = folders.queue()
    for version in range(1, 10):
        folders.publish(queue, version, f"hash{version}")
    assert folders.statuses() == dict.fromkeys((2, 4, 6, 8, 9), "waiting")
    assert kept(queue) == [2, 4, 6, 8]
    assert (folders.records.weights(4) / "part").read_text() == "hash4"
    queue.end(4, "done", metrics={"eval/reward": 0.5})
    assert not folders.records.weights(4).exists()
    (line,) = (folders.run / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(line) == {"version": 4, "step": 3, "status": "done", "eval/reward": 0.5}


def test_a_killed_run_owes_what_was_not_done(folders):
    """Killed with a checkpoint of 5 batches: 2 is kept, 4 is lost, 5 comes again; 6 and 8 are to
    be trained again, 6 to the same weights."""
    for version in (2, 4, 5):
        folders.records.write(EvalRecord(version, f"hash{version}"))
    for version in (6, 7, 8):
        folders.records.write(EvalRecord(version, f"hash{version}", "done"))
        folders.records.episodes(version).mkdir()
    folders.version("weights-2", "hash2", at=folders.records.folder)
    queue = folders.queue(step=5, incarnation=1)
    assert folders.statuses()[4] == "interrupted"
    folders.version("v1.5", "hash5")
    queue.began()
    for version, parameters in ((6, "hash6"), (7, "other7"), (8, "other8"), (9, "hash9")):
        folders.publish(queue, version, parameters, incarnation=1)
    assert kept(queue) == [2, 5, 7, 8]
    there = [version for version in (6, 7, 8) if folders.records.episodes(version).exists()]
    assert there == [6]
    assert [v for v, status in folders.statuses().items() if status == "done"] == [6]


@pytest.mark.slow
def test_each_evaluation_is_of_one_version_and_a_failure_ends_none_but_its_own(folders):
    """Two versions on one engine; the weights of a third are damaged."""
    asked = config(**{"eval.every": 1, "engine.max_restarts": 0, "eval.samples_per_task": 2})
    file = folders.run / "config.toml"
    file.write_text(dump_toml(asked))
    queue = EvalQueue(folders.run, folders.versions, steps=STEPS, scheduled=True)
    for version in (1, 2, 3):
        path = write_version(folders.versions, version, load_file(BUNDLED / "model.safetensors"))
        if version == 3:
            part_of(path).write_bytes(part_of(path).read_bytes()[:-100])
        queue.published(version, "", due=True)
    queue.close()
    progress = make_progress("none", total_steps=9)
    evaluator = Evaluator(asked, file, folders.run, queue, incarnation=0, progress=progress)
    asyncio.run(evaluator.run(NO_SERVICES))
    assert folders.statuses() == {1: "done", 2: "done", 3: "failed"}
    failed = folders.records.read()[3]
    assert "damaged" in failed.error
    assert failed.metrics == {}
    assert evaluator.num_scheduled == 12
    assert list(folders.records.folder.glob("weights-*")) == []
    for version in (1, 2):
        reader = EpisodeReader(folders.records.episodes(version) / "episodes.db")
        names = reader.episode_ids(untrained=True)
        rows = [row for name in names for row in reader.trajectory(name).rows]
        reader.close()
        assert len(names) == 6
        assert {int(v) for row in rows for v in row.policy_versions if v >= 0} == {version}
