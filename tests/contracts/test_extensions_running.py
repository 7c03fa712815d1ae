"""What other packages bring to a run: where its processes are, what is played, and by whom."""

import asyncio
import json
import os
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import pytest
from arl_envs.math.env import MathEnv

from agentgym_rl.config import Config, load_config
from agentgym_rl.core import ConfigError, extensions
from agentgym_rl.core.extensions import register_extension
from agentgym_rl.engines import Router
from agentgym_rl.fleet import Turns, turns_of
from agentgym_rl.gym import Verifier, running_services, spec
from agentgym_rl.gym import verifier as verifiers
from agentgym_rl.rollout import LocalProducer, PlayerKind, check_single_agent, player_kind
from agentgym_rl.run import ProducerKind, producer_kind
from agentgym_rl.storage import EpisodeReader
from tests.e2e import forked
from tests.kit.extension import install

LAB = '''
"""A laboratory's own: its cluster, the two tasks that it trains on, its player, its preparation."""
import contextlib
from dataclasses import dataclass, replace
from itertools import cycle

from agentgym_rl.cluster.processes import LocalCluster
from agentgym_rl.rollout.episode import Player
from agentgym_rl.rollout.players import PlayerKind
from agentgym_rl.rollout.producer import LocalProducer
from agentgym_rl.run.parts import ProducerKind
from agentgym_rl.run.training import LivePart

class LabCluster(LocalCluster):
    """The laboratory's own machines."""
    def conflicts(self, config):
        if config.cluster.colocated:
            yield "cluster.type 'lab' has devices for everybody; leave out cluster.colocated"

class TwoTasks:
    def __init__(self, tasks):
        self._tasks = enumerate(cycle([tasks[3], tasks[5]]))
    async def next(self):
        return next(self._tasks)

class Curriculum(ProducerKind):
    def takes(self, config):
        return config.cluster.type == "lab"
    def producer(self, run, groups, cursor, player):
        mine = TwoTasks(run.tasks())
        return LocalProducer(run.config.rollout, groups, mine, player, seed=run.config.seed)

@dataclass(frozen=True)
class MarkedPlayer(Player):
    async def play(self, task, **names):
        played = await Player.play(self, task, **names)
        return replace(played, metrics={**played.metrics, "marked": 1.0})

class Marking(PlayerKind):
    def takes(self, rollout, spec):
        return True
    def player(self, alone, rollout, opponents):
        parts = {name: getattr(alone, name) for name in Player.__dataclass_fields__}
        return MarkedPlayer(**parts)

async def prepare(opened, progress):
    (opened.run_dir / "prepared").write_text(opened.config.cluster.type)
    return opened.config

class Copy:
    def __init__(self, config, run_dir):
        self._file = open(run_dir / "copy", "w")
    def log(self, step, metrics):
        print(step, *(["loss"] if "loss" in metrics else []), file=self._file, flush=True)
    def close(self):
        self._file.close()

class Door(LivePart):
    @contextlib.contextmanager
    def reachable(self, url):
        (self.run.run_dir / "door").write_text(url)
        yield

    async def adapt(self, services):
        (self.run.run_dir / "adapts").write_text("")

    def finish(self):
        (self.run.run_dir / "finished").write_text(str(len(self.run.controller.history)))

CLUSTER, CURRICULUM, MARKING = LabCluster(), Curriculum(), Marking()
'''
POINTS = {
    "processes": {"lab": "lab:CLUSTER"},
    "producers": {"two-tasks": "lab:CURRICULUM"},
    "players": {"marking": "lab:MARKING"},
    "preparations": {"lab": "lab:prepare"},
    "live_parts": {"door": "lab:Door"},
    "receivers": {"copy": "lab:Copy"},
}
TINY = (
    *("--steps=2", "--rollout.groups_per_batch=2", "--rollout.group_size=2"),
    *("--eval.num_tasks=0", "--logging.progress=none", "--logging.plot=false"),
)


@pytest.fixture
def arl(tmp_path):
    """`arl` where the laboratory's package is installed."""
    folder = install(tmp_path / "site", {"lab": LAB}, POINTS)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])

    return partial(forked.arl, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.slow
def test_a_run_of_another_package(arl, tmp_path):
    folder = tmp_path / "run"
    done = arl("train", "--json", "--cluster=lab", f"--run={folder}", *TINY)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 2
    theirs = [MathEnv.task_source("train", seed=1)[index].id for index in (3, 5)]
    with closing(EpisodeReader(folder / "episodes.db")) as log:
        played = [log.trajectory(name) for name in log.episode_ids()]
    assert {each.task_id for each in played} == set(theirs)
    assert all(each.metrics["marked"] == 1.0 for each in played)
    assert (folder / "prepared").read_text() == "lab"
    assert (folder / "copy").read_text().splitlines() == ["0 loss", "1 loss"]
    assert (folder / "adapts").exists()
    assert (folder / "finished").read_text() == "2"
    assert (folder / "door").read_text().startswith("http://")


@pytest.mark.slow
def test_what_another_package_refuses_is_refused_before_the_run(arl, tmp_path):
    folder = tmp_path / "run"
    done = arl("train", "--cluster=lab", "--cluster.colocated=true", f"--run={folder}", *TINY)
    assert done.returncode == 2
    assert "'lab' has devices for everybody" in done.stderr
    assert not folder.exists()
    rows = json.loads(arl("list", "--json").stdout)["rows"]
    cluster = {"kind": "cluster", "id": "lab", "description": "The laboratory's own machines."}
    assert cluster | {"error": ""} in rows
    done = arl("train", "--cluster=labb", *TINY)
    assert "'lab', 'local', 'ray' or 'slurm'; did you mean lab?" in done.stderr


@pytest.fixture
def registered(monkeypatch):
    """The function that registers members for one test."""
    monkeypatch.setattr(extensions, "_registered", {})
    return register_extension


class Everything(ProducerKind):
    def takes(self, config):
        return True

    def producer(self, run, groups, cursor, player):
        raise NotImplementedError


def test_the_kernel_plays_unless_another_does(registered):
    run = SimpleNamespace(config=Config())
    kind = producer_kind(run.config)
    assert isinstance(kind.producer(run, None, None, None), LocalProducer)  # pyright: ignore
    registered("producers", "mine", mine := Everything())
    assert producer_kind(run.config) is mine
    with pytest.raises(ConfigError, match="mine and workers"):
        producer_kind(load_config(overrides={"rollout.workers": 2}))


class Duel(PlayerKind):
    def takes(self, rollout, spec):
        return spec.id.startswith("math")

    def player(self, single_agent, rollout, opponents):
        return single_agent

    def check_single_agent(self, spec, env):
        raise ConfigError(f"{spec.id} needs two")


def test_a_kind_of_players_takes_the_environments_it_knows(registered):
    registered("players", "duel", duel := Duel())
    rollout, math = Config().rollout, spec("math")
    assert player_kind(rollout, math) is duel
    assert player_kind(rollout, spec("tools")) is not duel
    with pytest.raises(ConfigError, match="needs two"):
        check_single_agent(math, math.make())
    seats = load_config(overrides={"rollout.seats": {"x": "policy", "o": "policy"}}).rollout
    with pytest.raises(ConfigError, match="duel and games"):
        player_kind(seats, math)


class OneAtATime(Turns):
    shared = True

    async def to_ranks(self):
        return False


def test_turns_on_devices_come_from_whoever_shares_them(registered):
    config = Config()
    sections = (config.cluster, config.trainer, config.own_engine)
    assert turns_of(*sections) is Turns
    registered("turns", "mine", lambda cluster, trainer, engine: OneAtATime)

    async def give_up(server, why):
        raise AssertionError(why)

    router = Router(interrupt="keep", wait_s=1.0)
    turns = turns_of(*sections)(router, servers=list, give_up=give_up)
    assert not asyncio.run(turns.to_ranks())
    config = load_config(overrides={"cluster.colocated": True})
    with pytest.raises(ConfigError, match="colocated and mine"):
        turns_of(config.cluster, config.trainer, config.own_engine)


POOL = '''
"""A pool that calls functions in this process, for functions that a laboratory trusts."""
import importlib

from agentgym_rl.gym.verifier import Called, VerifierPool, VerifierStats

class Trusting(VerifierPool):
    def __init__(self, num_workers, *, timeout_s=5.0, memory_mb=64):
        self._stats = VerifierStats(workers=num_workers)
    async def start(self):
        self._functions = {}
    async def close(self):
        del self._functions
    async def call(self, target, *args, timeout_s=None, fresh=False):
        module, _, name = target.partition(":")
        self._stats.calls += 1
        return Called("done", getattr(importlib.import_module(module), name)(*args))
    @property
    def isolation(self):
        return frozenset()
    def require(self, *words):
        pass
    def stats(self):
        return self._stats
'''


def test_a_pool_of_another_package_comes_before_ours(tmp_path, monkeypatch):
    points = {"verifiers": {"trusting": "trusting:Trusting"}}
    monkeypatch.syspath_prepend(install(tmp_path / "trust", {"trusting": POOL}, points))

    async def pids():
        own = Verifier()
        found = [(await own.call("os:getpid")).value]
        await own.close()
        config = Config()
        async with running_services(
            Verified(), config.sandbox, config.verifier_options
        ) as services:
            assert services.verifier is not None
            found.append((await services.verifier.call("os:getpid")).value)
            return found, services.verifier.stats()

    found, stats = asyncio.run(pids())
    assert set(found) == {os.getpid()}
    assert (stats.calls, stats.workers) == (1, Config().verifier.num_workers)


class Verified(MathEnv):
    def __init__(self):
        super().__init__()
        self.uses_verifier = True


def test_pools_that_cannot_be_chosen_are_refused(registered, monkeypatch):
    registered("verifiers", "no_pool", dict)
    with pytest.raises(ConfigError, match="expected a subclass of"):
        verifiers.make_pool(1)
    registered("verifiers", "another", dict)
    with pytest.raises(ConfigError, match="another and no_pool"):
        verifiers.make_pool(1)
    monkeypatch.setattr(verifiers, "VERIFIERS", "verifiers_of_nobody")
    with pytest.raises(ConfigError, match="no installed package has a pool"):
        verifiers.make_pool(1)
