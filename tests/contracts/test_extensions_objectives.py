"""Choices among tasks, additions to episodes, corrections of behavior weights, and terms, of other
packages."""

import asyncio
import sys
import tomllib

import pytest
import torch

from agentgym_rl.algo import behavior_weights, check_own_parts, needs, number_of_batch
from agentgym_rl.algo.own_advantage import made_up_batch
from agentgym_rl.algo.terms import our_terms
from agentgym_rl.cli.config_keys import key_help
from agentgym_rl.config import AlgoConfig, RolloutConfig, dump_toml, load_config
from agentgym_rl.core import ConfigError, Task, extensions
from agentgym_rl.rollout import draws_of
from agentgym_rl.rollout.additions import additions
from agentgym_rl.rollout.task_choice import draws_kind
from tests.kit.extension import install
from tests.kit.groups import make_group

MODULE = """
from contextlib import asynccontextmanager
from dataclasses import replace

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.rollout.additions import Addition, AdditionKind
from agentgym_rl.rollout.task_choice import Draws, DrawsKind


class Even(Draws):
    taken = ()

    def takes(self, index, task, *, version):
        return index % 2 == 0

    async def record(self, index, task):
        pass

    def saw(self, group):
        pass

    def exhausted(self, passed):
        return ConfigError("no even tasks")


class EvenKind(DrawsKind):
    def takes(self, config):
        return config.max_rejected == 7

    def key(self, config):
        return "rollout.max_rejected=7"

    def check(self, config):
        pass

    def draws(self, config, episodes, *, seed, recovered):
        return Even()


class Note(Addition):
    async def added(self, episode, task):
        return replace(episode, metrics={**episode.metrics, "noted": float(task.seed)})


class NoteKind(AdditionKind):
    def takes(self, config):
        return config.seed == 77

    @asynccontextmanager
    async def opened(self, config):
        yield Note()


EVEN, NOTE = EvenKind(), NoteKind()
"""
CORRECTIONS = '''
from typing import Literal

from pydantic import Field

from agentgym_rl.algo import BehaviorWeights, Correction
from agentgym_rl.config import WeightedCorrection


class Keys(WeightedCorrection):
    """A correction that drops tokens far above the mean of the batch."""

    type: Literal["mean"] = "mean"
    factor: float = Field(default=2.0, gt=0)
    """The number of means that are kept."""


class Mean(Correction):
    section = Keys
    needs_batch = True

    def of_batch(self, log_weights, keys):
        return float(log_weights.exp().mean())

    def weights(self, tokens, keys):
        kept = tokens.values.exp() <= keys.factor * tokens.of_batch
        return tokens.weighted(keys.weight, kept)


class WrongKeys(WeightedCorrection):
    type: Literal["wrong"] = "wrong"


class Wrong(Correction):
    section = WrongKeys

    def weights(self, tokens, keys):
        return BehaviorWeights(tokens.values[:1], ~tokens.finite)


MEAN, WRONG = Mean(), Wrong()
'''


@needs("reference")
def near(tokens, log_ratio):
    return log_ratio - (tokens.logprobs - tokens.reference) ** 2


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    points = {
        "draws": {"even": "theirs_even:EVEN"},
        "additions": {"note": "theirs_even:NOTE"},
        "corrections": {"mean": "theirs_mean:MEAN", "wrong": "theirs_mean:WRONG"},
    }
    modules = {"theirs_even": MODULE, "theirs_mean": CORRECTIONS}
    monkeypatch.syspath_prepend(str(install(tmp_path / "theirs", modules, points)))
    yield
    for name in modules:
        sys.modules.pop(name, None)


def test_a_package_chooses_among_the_tasks(theirs):
    found = draws_of(RolloutConfig(max_rejected=7), None, seed=1)  # pyright: ignore
    task = Task("t", 1, {})
    assert found is not None
    assert [found.takes(index, task, version=0) for index in range(3)] == [True, False, True]
    assert draws_kind(RolloutConfig()) is None


def test_two_choices_are_refused(theirs):
    with pytest.raises(ConfigError, match=r"curriculum and even .* would both choose the tasks"):
        draws_kind(RolloutConfig(max_rejected=7, curriculum="task"))


def test_a_package_adds_to_episodes(theirs):
    async def noted():
        async with additions(load_config(None, {"seed": 77})) as (note,):
            return await note.added(make_group("g", [0]).members[0], Task("t", 5, {}))

    assert asyncio.run(noted()).metrics["noted"] == 5.0


def test_a_package_corrects_behavior_weights(theirs):
    """Its keys are checked, kept and shown as ours are; its weights may depend on the batch."""
    keys = {"algo.behavior_correction.type": "mean", "algo.behavior_correction.factor": "1.5"}
    config = load_config(None, keys)
    assert "factor = 1.5" in dump_toml(config)
    assert load_config(tomllib.loads(dump_toml(config))) == config
    assert config.algo.needs_batch
    assert "proximal" in check_own_parts(config.algo)
    ratios, correction = torch.tensor([1.0, 1.0, 4.0, 0.5]), config.algo.behavior_correction
    of_batch = number_of_batch(ratios.log(), correction, made_up_batch(()).ranks)
    found = behavior_weights(
        ratios.log(), 0 * ratios, torch.arange(4), correction, of_batch=of_batch
    )
    assert found.masked.tolist() == [False, False, True, False]
    assert "type = mean" in key_help("algo.behavior_correction")
    with pytest.raises(ConfigError, match=r"did you mean algo\.behavior_correction\.factor\?"):
        load_config(None, {**keys, "algo.behavior_correction.facter": 2})


def test_a_correction_is_tried_before_a_run(theirs):
    algo = load_config(None, {"algo.behavior_correction.type": "wrong"}).algo
    with pytest.raises(ConfigError, match=r"'wrong' returned \[\[1\], \[6\]\] for 6 tokens"):
        check_own_parts(algo)


def test_what_is_not_installed_is_refused(monkeypatch):
    points = extensions.entry_points_of

    def installed(group):
        return {} if group == "objectives" else points(group)

    for name in ("core.extensions", "algo.terms"):
        monkeypatch.setattr(f"agentgym_rl.{name}.entry_points_of", installed)
    taught = load_config(None, {"algo.teacher.models": "bundled/math"})
    for algo, said in (
        (taught.algo, "algo.teacher: no installed package has its term"),
        (AlgoConfig(entropy_coef=1), "algo.entropy_coef: no installed package"),
    ):
        with pytest.raises(ConfigError, match=said):
            our_terms(algo)
    near = f"{__name__}:near"
    said = f"algo.loss='{near}' with the need 'reference': no installed package provides it"
    with pytest.raises(ConfigError, match=said):
        check_own_parts(AlgoConfig(loss=near))
