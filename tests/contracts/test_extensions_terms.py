"""Parts of the objective, and trackers, of other packages: a run takes them, with their keys."""

import json
import os
import sys

import pytest

from agentgym_rl.algo import check_own_parts
from agentgym_rl.cli import main as cli
from agentgym_rl.config import AlgoConfig, load_config
from agentgym_rl.core import ConfigError
from tests.e2e.forked import arl
from tests.kit.cases import cases
from tests.kit.extension import install

PRICE = '''
from pydantic import Field

from agentgym_rl.algo.terms import Term
from agentgym_rl.config import Section


class Keys(Section):
    """The section `algo.price`: a price of unlikely tokens."""

    coef: float = Field(default=0.1, gt=0)
    """The price of one nat."""
    name: str = "price"
    """The name of the metric."""


class Price(Term):
    section = Keys

    def begin(self, batch):
        self._num = sum(batch.ranks.gather(len(batch.rows)))

    def loss(self, tokens, tally):
        tally.mean(f"{self.keys.name}/tokens", self._num, 1)
        return -self.keys.coef * (tokens.weights * tokens.logprobs).sum()


class Bare(Term):
    """A term without keys."""


class Wrong(Price):
    def advantages(self, batch):
        return batch.rewards


class Needy(Term):
    needs = ("reference",)


class Keyless:
    section = dict
'''
PARTS = '''
import json

import torch

from agentgym_rl.algo import needs
from agentgym_rl.gym.env import Env, Step


class Paid(Env):
    """One turn, whose length pays the turn and nothing else."""

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "go"}], {}

    async def step(self, action):
        return Step([], 0.0, True, False, {"turn_reward": 1.0 + len(action["content"])})


def of_turns(batch, *, factor):
    print(f"paid {int((batch.turn_rewards > 0).sum())} of {len(batch.turn_rewards)} tokens")
    assert len(batch.credits) == len(batch.rewards)
    return factor * batch.turn_rewards


@needs("reference")
def near(tokens, log_ratio):
    distance = tokens.logprobs - tokens.reference
    print(f"distance {float(distance.abs().max()):.3f}")
    return log_ratio.exp() * tokens.advantages - distance**2


def sgd(groups, *, lr, momentum):
    return torch.optim.SGD(groups, lr=lr, momentum=momentum)


class Notes:
    def __init__(self, run_dir, project, settings):
        self._file = open(run_dir / "notes.jsonl", "w")

    def log(self, step, metrics):
        print(json.dumps({"step": step, **metrics}), file=self._file, flush=True)

    def close(self):
        self._file.close()
'''
POINTS = {
    "objectives": {
        name.lower(): f"theirs_price:{name}" for name in ("Price", "Bare", "Wrong", "Needy")
    }
    | {"keyless": "theirs_price:Keyless", "broken": "theirs_broken:Term"},
    "trackers": {"notes": "theirs_parts:Notes"},
}


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    modules = {"theirs_price": PRICE, "theirs_parts": PARTS, "theirs_broken": "1 / 0\n"}
    folder = install(tmp_path / "theirs", modules, POINTS)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in modules:
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_run_takes_a_term_advantages_a_loss_an_optimizer_and_a_tracker(theirs, tmp_path):
    run = tmp_path / "run"
    words = (
        *("train", "--json", f"--run={run}", "--env=theirs_parts:Paid", "--agent=react"),
        *("--steps=2", "--rollout.groups_per_batch=2", "--rollout.group_size=2"),
        *("--eval.num_tasks=0", "--logging.plot=false", "--logging.progress=plain"),
        *("--algo.price.coef=0.25", "--algo.bare={}", "--algo.kl.reference=initial"),
        *("--algo.advantage=theirs_parts:of_turns", "--algo.advantage_options={factor = 0.5}"),
        *("--algo.loss=theirs_parts:near", "--logging.trackers=notes,theirs_parts:Notes"),
        *("--trainer.optimizer=theirs_parts:sgd", "--trainer.optimizer_options={momentum = 0.9}"),
    )
    done = arl(*words, env={**os.environ, "PYTHONPATH": str(theirs)})
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["price/tokens"] > 0 for row in rows] == [True, True]
    assert all(row["grad_norm"] > 0 for row in rows)
    assert [row["reward/mean"] for row in rows] == [0.0, 0.0]
    notes = [json.loads(line) for line in (run / "notes.jsonl").read_text().splitlines()]
    assert [note["loss"] for note in notes] == [row["loss"] for row in rows]
    log = (run / "logs" / "trainer-0.log").read_text()
    found = [line.split() for line in log.splitlines() if line.startswith("paid ")]
    assert found[-1][1] == found[-1][3]
    assert float(log.rpartition("distance ")[2].split()[0]) > 0  # after a step of the optimizer
    recorded = load_config(run / "config.toml").algo.term_sections
    assert {name: keys.model_dump() for name, keys in recorded.items()} == {
        "price": {"coef": 0.25, "name": "price"},
        "bare": {},
    }
    more = ("train", "--resume", run, "--steps=3", "--json")
    refused = arl(*more, "--algo.price.coef=0.5", env={**os.environ, "PYTHONPATH": str(theirs)})
    assert refused.returncode == 2
    assert "algo.price.coef is 0.5, not 0.25" in refused.stderr


def test_its_keys_are_in_help(theirs, capsys):
    for words, said in (
        ("--help algo.price", "algo.price: a price of unlikely tokens."),
        ("--help algo.price.coef", "The price of one nat."),
        ("--help algo", "algo.price"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["train", *words.split()])
        assert said in capsys.readouterr().out


def test_they_are_listed(theirs, capsys):
    with pytest.raises(SystemExit):
        cli.main(["list", "--json"])
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert (rows["bare"]["kind"], rows["bare"]["description"]) == ("term", "A term without keys.")
    assert (rows["notes"]["kind"], rows["notes"]["error"]) == ("tracker", "")
    assert "ZeroDivisionError" in rows["broken"]["error"]


def test_a_term_is_on_where_its_section_is(theirs):
    assert not AlgoConfig().term_sections
    algo = load_config(None, {"algo.price.name": "5"}).algo
    assert list(algo.term_sections) == ["price"]
    assert algo.model_dump()["price"] == {"coef": 0.1, "name": "5"}
    assert check_own_parts(algo) == {"every_row"}


@cases(
    "key, value, said",
    [
        ("algo.price.coef", -1, r"algo\.price\.coef: too small; allowed: more than 0"),
        ("algo.price.cost", 1, r"unknown key algo\.price\.cost; did you mean algo\.price\.coef"),
        (
            "algo.prize.coef",
            1,
            r"unknown key algo\.prize; did you mean algo\.price\? \(sections of other",
        ),
        ("algo.broken.coef", 1, r"objectives: 'broken' .* cannot be imported: ZeroDivisionError"),
        ("algo.keyless.coef", 1, "whose section is <class 'dict'>; expected a class with a sec"),
        ("logging.trackers", "note", "did you mean notes"),
    ],
)
def test_what_is_wrong_with_a_key_is_named(theirs, key, value, said):
    with pytest.raises(ConfigError, match=said):
        load_config(None, {key: value})


@cases(
    "name, said",
    [
        ("wrong", r"algo\.wrong: advantages returned \[4\]; expected a tensor \[8\] or None"),
        ("needy", r"algo\.needy needs a reference model: set algo\.kl\.reference"),
    ],
)
def test_a_term_that_does_not_keep_its_contract_is_refused_before_it_trains(theirs, name, said):
    with pytest.raises(ConfigError, match=said):
        check_own_parts(load_config(None, {f"algo.{name}": {}}).algo)
