"""Trials of other packages: they are opened before anything starts, and closed after the run; and
checks of first prompts, which end before that."""

import asyncio
import sys

import pytest

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, extensions
from agentgym_rl.core.extensions import register_extension
from agentgym_rl.rollout import check_prompts, config_checks, tried
from agentgym_rl.run.train import checked, play_and_train
from tests.kit.extension import install

TRIAL = """
from contextlib import asynccontextmanager

from agentgym_rl.core import ConfigError

SEEN = []


@asynccontextmanager
async def budgeted(config, split):
    SEEN.append((split, config.steps))
    if split and config.steps > 7:
        raise ConfigError(f"steps {config.steps}: the budget is 7")
    yield
    SEEN.append("end")


async def worded(config, splits, say):
    say("reading prompts")
    SEEN.append((*splits, config.steps))
    if config.steps > 5:
        raise ConfigError(f"steps {config.steps}: the prompts last for 5")
"""


@pytest.fixture
def seen(tmp_path, monkeypatch):
    points = {"trials": {"budget": "budgets:budgeted"}}
    monkeypatch.syspath_prepend(install(tmp_path / "site", {"budgets": TRIAL}, points))
    monkeypatch.chdir(tmp_path)
    import budgets  # pyright: ignore[reportMissingImports]

    budgets.SEEN.clear()
    return budgets.SEEN


def test_a_trial_is_open_while_a_run_lasts(seen):
    async def main():
        async with tried(load_config(None, {"steps": 3}), "eval"):
            seen.append("run")

    asyncio.run(main())
    assert seen == [("eval", 3), "run", "end"]


def test_a_worker_of_a_run_is_only_watched(seen, monkeypatch):
    from arl_scale.workers import client
    from arl_scale.workers.process import work

    monkeypatch.setattr(client, "_TRY_FOR_S", 0.0)  # nobody answers there
    config = load_config(None, {"steps": 3})
    with pytest.raises(client.ControllerError):
        asyncio.run(work(config, controller_url="http://127.0.0.1:9", token="-"))
    assert seen == [(None, 3)]


@pytest.fixture
def worded(seen):
    register_extension("prompt_checks", "worded", sys.modules["budgets"].worded)
    yield seen
    extensions._registered.pop(("prompt_checks", "worded"))


def test_a_check_of_first_prompts_gets_the_splits_and_refuses_a_run(worded):
    said = []
    # short prompts: our own check has nothing to say of them
    asyncio.run(check_prompts(load_config(None, {"steps": 3}), ("eval",), say=said.append))
    assert said == ["reading prompts"]
    assert ("eval", 3) in worded
    with pytest.raises(ConfigError, match="the prompts last for 5"):
        asyncio.run(checked(load_config(None, {"steps": 6}), say=said.append))
    assert worded[-1] == ("eval", "train", 6)


def test_prompts_are_not_measured_without_a_package_that_does(monkeypatch):
    long = load_config(None, {"rollout.max_input_tokens": 1})
    with pytest.raises(ConfigError, match=r"none of .* fits rollout\.max_input_tokens 1"):
        asyncio.run(check_prompts(long, ("train",), say=print))
    monkeypatch.setattr(config_checks, "extension_names", lambda group: [])
    asyncio.run(check_prompts(long, ("train",), say=print))


def test_a_trial_refuses_a_run_before_it_has_a_folder(seen, tmp_path):
    from agentgym_rl.report import reporting_to

    config = load_config(None, {"steps": 8, "logging.progress": "none"})

    async def main():
        with reporting_to(None, config.logging, total_steps=8) as progress:
            await play_and_train(config, progress)

    with pytest.raises(ConfigError, match="the budget is 7"):
        asyncio.run(main())
    assert seen == [(None, 8), "end", ("train", 8)]
    assert not (tmp_path / "runs").exists()
