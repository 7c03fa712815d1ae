"""A run goes on with the log and the data it had, or says in one sentence why it cannot."""

import asyncio
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentgym_rl.config import Config, TrainerConfig, dump_record, load_config
from agentgym_rl.config.records import brought_up
from agentgym_rl.core import ConfigError, SeededTasks, Task, TaskSource
from agentgym_rl.gym.data import Rows, RowTask, row_tasks
from agentgym_rl.models import resolve_paths, with_model_defaults
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.run import resumed_config
from agentgym_rl.run.resume import begin, check_kept, check_resumable, schedule_moved
from agentgym_rl.storage import EPISODES, EpisodeLog, check_log
from agentgym_rl.storage.run_folder import MARK, create_run_dir, record_tasks
from tests.kit.cases import cases
from tests.kit.groups import make_group

QUESTIONS = [{"question": f"q{n}", "answer": n} for n in range(12)]


def make_task(row) -> RowTask:
    return RowTask(row["question"], {"answer": row["answer"]})


def choose(row, where):
    return make_task


def write(path: Path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tasks_of(folder: Path) -> TaskSource:
    rows = Rows(
        path=str(folder / "train*.jsonl"),
        eval_path=str(folder / "eval.jsonl"),
        weight_field="weight",
    )
    return row_tasks("train", rows, choose, seed=1)


class Untold(TaskSource):
    """Makes no digest of its tasks."""

    def __init__(self, first: str = "a") -> None:
        self._names = [first, "b", "c"]

    def __getitem__(self, index: int, /) -> Task:
        return Task(f"t{index}", index, {"name": self._names[index]})

    def __len__(self) -> int:
        return len(self._names)


async def _play(log: EpisodeLog, tasks: TaskSource) -> None:
    log.begin(step=0, checkpoint="", num_ranks=1)
    for index in range(3):
        group = make_group(f"g{index}", [0, 0])
        await log.add_group(tasks[index], index, group)
    await log.lease([make_group("g0", [0, 0])], 0)


def begun(folder: Path, tasks: TaskSource) -> Config:
    """A run in `folder` that has played three groups, and was killed."""
    config = Config(run=str(folder), rollout={"shuffle": False})
    create_run_dir(config)
    with closing(EpisodeLog(folder / EPISODES)) as log:
        asyncio.run(_play(log, tasks))
    record_tasks(folder, tasks)
    (folder / "metrics.jsonl").touch()
    return config


@pytest.fixture
def data(tmp_path) -> Path:
    write(tmp_path / "train.jsonl", QUESTIONS)
    write(tmp_path / "eval.jsonl", [{"question": "held out", "answer": 0}])
    return tmp_path


def refusal(folder: Path, config: Config, tasks: TaskSource | None) -> str:
    """In one sentence; empty: it goes on."""
    try:
        check_kept(folder, config, tasks)
    except ConfigError as error:
        said = str(error)
    else:
        return ""
    assert "\n" not in said
    return said


def touch(data: Path) -> None:
    os.utime(data / "train.jsonl", (1, 1))


def reorder(data: Path) -> None:
    write(data / "train.jsonl", QUESTIONS[::-1])


def split_in_two(data: Path) -> None:
    write(data / "train.jsonl", QUESTIONS[:5])
    write(data / "train2.jsonl", QUESTIONS[5:])


def test_data_that_holds_the_same_is_the_same(data):
    for number, change in enumerate((touch, reorder, split_in_two)):
        write(data / "train.jsonl", QUESTIONS)
        config = begun(data / f"run{number}", tasks_of(data))
        change(data)
        assert refusal(Path(config.run), config, tasks_of(data)) == "", change


def rows_with(**change) -> list[dict]:
    return [QUESTIONS[0] | change, *QUESTIONS[1:]]


CHANGES = {
    "train.jsonl": [
        QUESTIONS[1:],
        [*QUESTIONS, {"question": "more", "answer": 1}],
        rows_with(answer=99),
        rows_with(question="another"),
        rows_with(weight=2.0),
    ],
    "eval.jsonl": [[{"question": "held out", "answer": 1}]],
}


def test_data_that_changed_is_refused_by_name(data):
    config = begun(data / "run", tasks_of(data))
    for name, versions in CHANGES.items():
        before = (data / name).read_text()
        for rows in versions:
            write(data / name, rows)
            said = refusal(data / "run", config, tasks_of(data))
            assert "the training data has changed since the run began" in said, rows
            assert "train.jsonl" in said, rows
            assert "put the data back as it was, or begin a new run" in said, rows
        (data / name).write_text(before)
    assert refusal(data / "run", config, tasks_of(data)) == ""


def test_another_version_that_may_read_the_data_otherwise_is_named(data):
    config = begun(data / "run", tasks_of(data))
    write(data / "train.jsonl", QUESTIONS[:3])
    with closing(sqlite3.connect(data / "run" / EPISODES)) as log, log:
        log.execute("UPDATE incarnations SET build = '0.0.9'")
    said = refusal(data / "run", config, tasks_of(data))
    assert "or go on with the version that began the run (0.0.9) if this one (" in said


ROWS = {"rows": {"path": "a.jsonl"}}


@cases(
    "env",
    [
        {"id": "reward:a:b", "options": {"data": "a.jsonl"}},
        {"id": "math-v0", "options": ROWS},
        {"id": "mix", "options": {"envs": [{"id": "code", "options": ROWS}]}},
    ],
    ids=range(3),
)
def test_rows_of_a_run_of_format_0_are_read_as_they_were(tmp_path, env):
    def rows(**record) -> dict:
        options = brought_up(Config, {"env": env, **record}, tmp_path / MARK)["env"]["options"]
        [member] = options.get("envs", [{"options": options}])
        return member["options"].get("rows", {})

    assert (rows()["weight_field"], rows()["join_forms"]) == ("weight", False)
    assert not {"weight_field", "join_forms"} & rows(format=1).keys()


def test_without_a_digest_the_tasks_that_were_played_tell(data):
    config = begun(data / "untold", Untold())
    assert refusal(data / "untold", config, Untold()) == ""
    assert "task 0 of its order is another one" in refusal(data / "untold", config, Untold("x"))
    config = begun(data / "lost", tasks_of(data))
    (data / "lost/tasks.json").write_bytes(b"\0" * 9)
    assert refusal(data / "lost", config, tasks_of(data)) == ""
    write(data / "train.jsonl", [row | {"answer": -1} for row in QUESTIONS])
    assert "is another one" in refusal(data / "lost", config, tasks_of(data))
    config = begun(data / "seeds", SeededTasks("train", seed=1))
    assert refusal(data / "seeds", config, SeededTasks("train", seed=1)) == ""
    assert "is another one" in refusal(data / "seeds", config, SeededTasks("train", seed=2))


def test_a_log_that_is_gone_or_empty_is_refused_once_there_was_one(data):
    config = begun(data / "run", Untold())
    for state in ("missing", "empty"):
        copy = shutil.copytree(data / "run", data / state)
        for path in copy.glob(f"{EPISODES}*"):
            path.unlink()
        if state == "empty":
            (copy / EPISODES).touch()
        said = refusal(copy, config, Untold())
        assert f"{EPISODES} is {state}" in said
        assert "put it back from a copy, or begin a new run" in said
        (copy / "checkpoints/step-2").mkdir(parents=True)
        assert "no checkpoint in" in refusal(copy, config, Untold())
        shutil.rmtree(copy / "checkpoints")
        for name in ("metrics.jsonl", "tasks.json"):
            (copy / name).unlink(missing_ok=True)
        assert refusal(copy, config, Untold()) == "", "it was killed before it did anything"


def test_an_episode_that_is_damaged_inside_is_refused_where_it_is_needed(data):
    """SQLite itself finds nothing wrong with the file."""
    config = begun(data / "run", Untold())
    with closing(sqlite3.connect(data / "run" / EPISODES)) as log, log:
        (record,) = log.execute("SELECT data FROM trajectories WHERE group_id = 'g1'").fetchone()
        damaged = record[:50] + bytes([record[50] ^ 1]) + record[51:]
        log.execute("UPDATE trajectories SET data = ? WHERE group_id = 'g1'", (damaged,))
    assert "the record of episode g1-" in refusal(data / "run", config, Untold())
    with closing(sqlite3.connect(data / "run" / EPISODES)) as log, log:
        log.execute("UPDATE groups SET status = 'dropped' WHERE group_id = 'g1'")
    assert refusal(data / "run", config, Untold()) == ""
    with pytest.raises(ConfigError, match="the record of episode g1-"):
        check_log(data / "run" / EPISODES)
    with closing(sqlite3.connect(data / "run" / EPISODES)) as log, log:
        log.execute("ALTER TABLE trajectories DROP COLUMN crc")  # as earlier versions have it
        log.execute("UPDATE groups SET status = 'waiting' WHERE group_id = 'g1'")
    assert refusal(data / "run", config, Untold()) == ""


def test_a_configuration_that_is_damaged_or_gone_is_said_so(data):
    config = begun(data / "run", Untold())
    file = data / "run/config.toml"
    whole = file.read_bytes()
    for cut in (b"", whole[:200], whole[: whole.index(b"[trainer]")], bytes(9), b"\xff" * 9):
        file.write_bytes(cut)
        with pytest.raises(ConfigError, match=r"config.toml is damaged .*put it back from a copy"):
            check_resumable(data / "run", config)
    file.unlink()
    with pytest.raises(ConfigError, match="already holds a run"):
        create_run_dir(load_config(None, {"run": str(data / "run")}))


OTHER_VALUES = {
    "verifier.num_workers": 1,
    "verifier.timeout_s": 9.0,
    "sandbox.id": "docker",
    "sandbox.options.slots": 16,
    "trainer.peak_tflops": 1.5,
    "trainer.num_ranks": 2,
    "serve.max_sessions": 7,
    "rollout.tool_timeout_s": 3.0,
    "rollout.workers": 2,
    "engine.num_threads": 2,
    "eval.num_tasks": 5,
    "logging.level": "debug",
}
FIXED_VALUES = {
    "seed": 7,
    "env.options.level": 2,
    "agent.id": "single_turn",
    "model.path": "bundled/tools",
    "rollout.group_size": 4,
    "rollout.max_staleness": 1,
    "algo.clip_low": 0.3,
    "trainer.learning_rate": 1e-5,
    "engine.max_model_len": 256,
    "lora.rank": 4,
}


@cases("key", OTHER_VALUES)
def test_where_and_how_fast_a_run_goes_on_is_free(tmp_path, key):
    begun(tmp_path / "run", Untold())
    again = load_config(tmp_path / "run/config.toml", {key: OTHER_VALUES[key]})
    check_resumable(tmp_path / "run", again)


@cases("key", FIXED_VALUES)
def test_what_is_played_and_learned_stays(tmp_path, key):
    begun(tmp_path / "run", Untold())
    again = load_config(tmp_path / "run/config.toml", {key: FIXED_VALUES[key]})
    with pytest.raises(ConfigError, match="with another configuration") as refused:
        check_resumable(tmp_path / "run", again)
    assert key in str(refused.value)
    assert "unset, not {}" not in str(refused.value)


def test_a_resumed_run_keeps_what_was_fitted_when_it_began(tmp_path):
    keys = {"rollout.max_tokens": 77, "engine.max_model_len": 777, "trainer.learning_rate": 0.123}
    begun = with_model_defaults(load_config(None, {"run": str(tmp_path / "run"), **keys}), BUNDLED)
    run, _ = create_run_dir(resolve_paths(begun), kind="k")
    file = tmp_path / "mine.toml"
    file.write_text("[eval]\nnum_tasks = 5\n")
    found = resumed_config(run, file, {"rollout.turn_timeout_s": 99.0})
    assert (found.rollout.max_tokens, found.own_engine.max_model_len) == (77, 777)
    assert found.trainer.learning_rate == 0.123
    assert (found.eval.num_tasks, found.rollout.turn_timeout_s) == (5, 99.0)
    with pytest.raises(ConfigError, match=r"rollout\.max_tokens is 50, not 77"):
        resumed_config(run, file, {"rollout.max_tokens": 50})


@cases(
    "key, name, flag",
    [
        ("env.options.data", "rows.jsonl", "--data FILE"),
        ("env.options.rows.path", "rows.jsonl", "--env.options.rows.path=FILE"),
        ("env.options.rows.path", "*.jsonl", "--env.options.rows.path=FILE"),
    ],
    ids=["data", "rows", "pattern"],
)
def test_a_resume_without_the_run_s_data_names_the_file_and_how_to_give_it(
    tmp_path, key, name, flag
):
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n")
    keys = {"run": str(tmp_path / "run"), "env.id": "code", key: str(tmp_path / name)}
    begun = with_model_defaults(load_config(None, keys), BUNDLED)
    run, _ = create_run_dir(resolve_paths(begun), kind="k")
    resumed_config(run, None, {})
    moved = file.rename(tmp_path / "moved.json")
    with pytest.raises(ConfigError, match="the data of the run is gone") as gone:
        resumed_config(run, None, {})
    assert str(gone.value).endswith(f"{tmp_path / name} ({key}). Put it back, or name its new "
                                    f"place: {flag}")  # fmt: skip
    found = resumed_config(run, None, {key: str(moved)})
    assert str(moved) in json.dumps(found.env.options)
    shutil.rmtree(run)


@cases("recorded", ["2026-01-02T03:04:05", None])
def test_a_resumed_run_keeps_the_date_in_its_prompts(tmp_path, recorded):
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# strftime_now #}")
    asked = {"run": str(tmp_path / "run"), "model.path": str(folder)}
    begun = with_model_defaults(load_config(None, asked), folder)
    assert begun.gateway.date
    run, file = create_run_dir(resolve_paths(begun), kind="k")
    lines = file.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("date = "))
    lines[at] = f'date = "{recorded}"' if recorded else ""  # a run of an earlier version has none
    file.write_text("\n".join(lines))
    assert resumed_config(run, None, {}).gateway.date == (recorded or "")


def test_a_run_that_goes_on_has_no_model_of_its_earlier_end(tmp_path):
    """Killed once more, it would count as finished, with the weights of fewer batches."""
    begun(tmp_path / "run", Untold())
    (tmp_path / "run" / "export").mkdir()
    with closing(EpisodeLog(tmp_path / "run" / EPISODES)) as log:
        begin(tmp_path / "run", log, None, num_ranks=1, num_steps=40)
    assert not (tmp_path / "run" / "export").exists()


def of_40_batches(run: Path, schedule: str) -> None:
    """A run that has begun, with a complete configuration."""
    config = begun(run, Untold()).model_copy(update={"trainer": TrainerConfig(schedule=schedule)})
    fitted = with_model_defaults(resolve_paths(config), BUNDLED)
    (run / MARK).write_text(dump_record(fitted, run))


@cases(
    "schedule, said",
    [
        ("linear", "now falls until batch 79"),
        ("cosine", "(trainer.schedule 'cosine')"),
        ("constant", ""),
    ],
)
def test_a_run_can_be_prolonged_and_the_end_of_its_schedule_moves(tmp_path, schedule, said):
    of_40_batches(tmp_path / "run", schedule)
    longer = resumed_config(tmp_path / "run", None, {"steps": 80})
    assert longer.steps == 80
    sentence = schedule_moved(tmp_path / "run", 80, schedule)
    assert said in sentence
    assert bool(said) == bool(sentence)
    assert schedule_moved(tmp_path / "run", 40, schedule) == ""


def test_a_run_cannot_be_shortened(tmp_path):
    of_40_batches(tmp_path / "run", "constant")
    with pytest.raises(ConfigError, match=r"steps .*39.*may only grow"):
        resumed_config(tmp_path / "run", None, {"steps": 39})


def test_the_log_knows_how_long_the_run_was_to_be(tmp_path):
    begun(tmp_path / "run", Untold())
    with closing(EpisodeLog(tmp_path / "run" / EPISODES)) as log:
        begin(tmp_path / "run", log, None, num_ranks=1, num_steps=80)
        asyncio.run(log.restarted(step=0, checkpoint="", num_ranks=2))
    with closing(sqlite3.connect(tmp_path / "run" / EPISODES)) as db:
        lengths = db.execute("SELECT num_steps FROM incarnations ORDER BY incarnation").fetchall()
    assert lengths == [(0,), (80,), (80,)]
