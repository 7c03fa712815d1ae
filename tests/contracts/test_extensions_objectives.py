"""Choices among tasks, additions to episodes, and terms with a model, of other packages."""

import asyncio
import sys

import pytest

from agentgym_rl.algo import check_own_parts, needs
from agentgym_rl.algo.terms import our_terms
from agentgym_rl.config import AlgoConfig, RolloutConfig, load_config
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


@needs("reference")
def near(tokens, log_ratio):
    return log_ratio - (tokens.logprobs - tokens.reference) ** 2


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    points = {"draws": {"even": "theirs_even:EVEN"}, "additions": {"note": "theirs_even:NOTE"}}
    folder = install(tmp_path / "theirs", {"theirs_even": MODULE}, points)
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("theirs_even", None)


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
