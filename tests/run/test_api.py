"""Runs and evaluations from a program: in its event loop, with nothing global changed."""

import asyncio
import contextlib
import json
import logging
import signal
import subprocess
import sys

import pytest

from agentgym_rl import Config, ConfigError, evaluate, train
from tests.kit.cases import cases

SMALL = {
    "steps": 2,
    "rollout.groups_per_batch": 2,
    "rollout.group_size": 4,
    "eval.num_tasks": 8,
    "logging.plot": False,
    "logging.progress": "none",
}


def surroundings() -> tuple:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    loggers = [logging.getLogger(name) for name in (None, "agentgym_rl")]
    return handlers, [(logger.level, list(logger.handlers)) for logger in loggers]


@pytest.mark.slow
def test_a_run_and_an_evaluation_in_a_loop_that_runs_already(warm, tmp_path):
    async def cell() -> None:
        before = surroundings()
        result = await train(overrides=SMALL | {"run": str(tmp_path / "run")})
        assert result.run == str(tmp_path / "run")
        assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 2
        evaluated = await evaluate(
            run=tmp_path / "run", overrides={"eval.num_tasks": 8}, out=tmp_path / "eval"
        )
        assert evaluated.num_tasks == 8
        assert json.loads((tmp_path / "eval/result.json").read_text())["reward"] == evaluated.reward
        assert surroundings() == before
        with pytest.raises(ConfigError, match="finished"):
            await train(resume=tmp_path / "run")

    asyncio.run(cell())


@pytest.mark.slow
def test_a_cancelled_run_ends_its_processes(tmp_path):
    async def cell() -> None:
        config = Config.model_validate({"run": str(tmp_path / "run"), "steps": 1000})
        running = asyncio.create_task(train(config))
        async with asyncio.timeout(60):
            while not (tmp_path / "run/metrics.jsonl").exists():  # noqa: ASYNC110 - another's file
                await asyncio.sleep(0.1)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(cell())
    found = subprocess.run(["pgrep", "-f", str(tmp_path / "run")], capture_output=True, text=True)
    assert found.stdout == ""


@cases("job", [train, evaluate])
def test_a_mistake_is_a_configuration_error(job):
    with pytest.raises(ConfigError, match=r"rollout\.group_sizes"):
        asyncio.run(job(overrides={"rollout.group_sizes": 4}))


def test_a_slurm_job_is_not_for_a_program():
    with pytest.raises(ConfigError, match="arl train"):
        asyncio.run(train({"cluster": {"type": "slurm"}}))


def test_only_a_run_can_be_resumed(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.toml"):
        asyncio.run(train(resume=tmp_path))
    with pytest.raises(ConfigError, match="leave out --run"):
        asyncio.run(train(resume=tmp_path, overrides={"run": "x"}))


def test_a_run_or_a_configuration_is_evaluated_not_both(tmp_path):
    with pytest.raises(ConfigError, match="give one of them"):
        asyncio.run(evaluate({}, run=tmp_path))
    with pytest.raises(ConfigError, match="no such folder"):
        asyncio.run(evaluate(checkpoint=tmp_path / "step-1"))


def test_the_package_that_has_the_name_of_the_function_can_be_called():
    import agentgym_rl.evaluate.folder

    with pytest.raises(ConfigError, match=r"eval\.num_task"):
        asyncio.run(agentgym_rl.evaluate(overrides={"eval.num_task": 4}))


GLOBAL = """
import logging, signal, sys, warnings
def state():
    return (
        list(sys.meta_path), list(sys.path_hooks), list(sys.path), list(warnings.filters),
        logging.getLogger().handlers[:], signal.getsignal(signal.SIGINT), sys.excepthook,
    )
before = state()
import agentgym_rl
assert state() == before
assert not {"gymnasium", "torch", "openai", "pydantic"} & set(sys.modules)
import gymnasium
assert not [name for name in gymnasium.registry if name.startswith("arl/")]
"""


def test_importing_the_package_changes_nothing_global():
    subprocess.run([sys.executable, "-c", GLOBAL], check=True)


@cases(
    "call, said",
    [
        (
            lambda: train(env="math"),  # pyright: ignore[reportArgumentType]
            r"train\(\) takes no argument 'env'; write train\(Config\(env='math'\)\), or",
        ),
        (
            lambda: evaluate(Config(), steps=3),  # pyright: ignore[reportArgumentType]
            r"evaluate\(\) .*Config\(steps=3\)\), or overrides={'steps': 3}",
        ),
        (
            lambda: train(group_size=4),  # pyright: ignore[reportArgumentType]
            r"'group_size'; did you mean rollout\.group_size",
        ),
        (
            lambda: train(overrides=["steps=2"]),  # pyright: ignore[reportArgumentType]
            r"overrides: got \['steps=2'\]; expected dotted keys .*{\"steps\": 2}",
        ),
        (
            lambda: train(Config),  # pyright: ignore[reportArgumentType]
            "the configuration: got .*; expected a Config, a file, or",
        ),
    ],
    ids=["section", "key", "inner", "list", "class"],
)
def test_arguments_that_a_run_does_not_have_are_refused_with_what_to_write(call, said):
    with pytest.raises(ConfigError, match=said):
        asyncio.run(call())


def test_the_folder_of_a_run_as_a_configuration_names_its_argument(tmp_path):
    (tmp_path / "config.toml").write_text("steps = 1\n")
    with pytest.raises(ConfigError, match=r'it is a folder; of a run: evaluate\(run="'):
        asyncio.run(evaluate(tmp_path))
