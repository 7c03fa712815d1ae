"""The terms of the objective by the keys that turn them on, on made-up tokens; and the rules for
those of other packages."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
import torch

from agentgym_rl.algo import Tally, all_terms, check_own_parts
from agentgym_rl.algo.own_advantage import made_up_batch
from agentgym_rl.algo.own_loss import made_up_tokens
from agentgym_rl.config import AlgoConfig, load_config
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases
from tests.kit.extension import install


def term(**keys):
    (found,) = (it for it in all_terms(AlgoConfig.model_validate(keys)) if not it.has_models)
    return found


def divergence(**keys):
    """A divergence of 0.1 nats a token, by k1, with a coefficient of 0.5."""
    given = {"coef": 0.5, "estimator": "k1", "reference": "initial", **keys}
    return term(kl=given), made_up_batch(("proximal", "reference"))


def test_a_divergence_in_the_reward_is_paid_by_each_token():
    found, batch = divergence(placement="reward")
    assert {*found.needs} == {"reference", "proximal"}
    assert found.rewards(batch).tolist() == pytest.approx([-0.05] * 8)
    assert found.returns(batch).tolist() == pytest.approx([-0.1, -0.05] * 4)  # rows of two tokens
    assert found.loss(made_up_tokens(), Tally()) is None


def test_a_divergence_in_the_loss_is_no_reward():
    found, batch = divergence(placement="loss")
    assert {*found.needs} == {"reference", "every_row"}
    assert (found.rewards(batch), found.returns(batch)) == (None, None)
    tokens = made_up_tokens()
    distance = (tokens.logprobs - tokens.reference).detach()
    loss = found.loss(tokens, Tally())
    assert loss.item() == pytest.approx(0.5 * float((tokens.weights * distance).sum()))


@cases("placement", ["loss", "reward"])
def test_the_divergence_of_the_used_tokens_is_measured(placement):
    found, batch = divergence(placement=placement)
    tally, used = Tally(), torch.tensor([1, 4, 6])
    found.measure(batch, used, batch.proximal[used] + 0.2, tally)
    assert tally.values() == {"policy/kl_reference": pytest.approx(0.3)}


def test_good_episodes_are_imitated_by_the_mean_over_all_ranks():
    """The second of four episodes, with the tokens 2 and 3, has a reward; another rank has 3 such
    tokens; the batch has 2 minibatches."""
    found, batch = term(positive_nll=0.1), made_up_batch(())
    assert {*found.needs} == {"every_row"}

    class Two:
        def gather(self, value):
            return [value, 3.0]

    batch.ranks = Two()
    found.begin(batch)
    tokens = replace(made_up_tokens(), logprobs=torch.tensor([-1.0, -2.0, -4.0, -8.0, -9.0, -9.0]))
    assert found.loss(tokens, Tally()).item() == pytest.approx(0.1 * (4 + 8) * 2 / 5)
    tokens.logprobs[2] = -math.inf
    assert found.loss(tokens, Tally()).item() == pytest.approx(0.1 * 8 * 2 / 5)


@cases("paid, expected", [([0, -1, 0, 0], 0.0), ([0, 0.5, 0, 0], 1.5), ([0, 0, 0.1, 0], 1.75)])
def test_only_a_reward_above_zero_is_imitated(paid, expected):
    found, batch = term(positive_nll=1), made_up_batch(())
    batch.raw_rewards = torch.tensor(paid, dtype=torch.float64)
    batch.num_minibatches = 1
    found.begin(batch)
    tokens = replace(made_up_tokens(), logprobs=torch.tensor([-9.0, -9.0, -1.0, -2.0, -3.0, -0.5]))
    assert found.loss(tokens, Tally()).item() == expected  # the mean of two tokens


def test_entropy_is_a_bonus_and_measured():
    found, tokens, tally = term(entropy_coef=0.25), made_up_tokens(), Tally()
    assert {*found.needs} == {"entropy", "every_row"}
    tokens = replace(tokens, entropies=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 3.0]))
    assert found.loss(tokens, tally).item() == pytest.approx(-0.25 * 18 / 6)
    assert tally.values() == {"policy/entropy": 3.0}


def test_terms_are_in_their_order():
    keys = {"entropy_coef": 0.1, "positive_nll": 0.1, "kl": {"coef": 0.1, "reference": "initial"}}
    found = all_terms(AlgoConfig.model_validate(keys))
    assert [it.order for it in found] == sorted(it.order for it in found)
    assert len(found) == 4, "these, and the one that has the reference model"


THEIRS = """
import torch

from agentgym_rl.algo.terms import Term

seen = {}


class Plain(Term):
    order = 5


class Lossy(Term):
    def loss(self, tokens, tally):
        return (tokens.weights * tokens.logprobs).sum()


class Objective(Term):
    order = 70

    def objective(self, tokens):
        return tokens.logprobs


class Chosen(Objective):
    order = 60

    def uses(self, batch):
        return torch.ones(len(batch.rows))


class Looking(Term):
    def loss(self, tokens, tally):
        seen["loss"] = (tokens.reference is not None, tokens.entropies is not None)

    def rewards(self, batch):
        seen["batch"] = (batch.reference is not None, batch.proximal is not None)

    def begin(self, batch):
        seen["advantages"] = batch.advantages


class Comparing(Looking):
    needs = ("reference",)


class Spread(Looking):
    needs = ("entropy", "proximal")


class Unmade(Term):
    def __init__(self, keys):
        raise OSError("no disk")


class Raising(Term):
    def end(self, batch):
        raise KeyError("end")


class Worded(Term):
    def uses(self, batch):
        return "all"


class Modelled(Raising):
    has_models = True


class Hungry(Raising):
    needs = ("food",)
"""
NAMES = (
    *("Plain", "Lossy", "Objective", "Chosen", "Looking", "Comparing", "Spread"),
    *("Unmade", "Raising", "Worded", "Modelled", "Hungry"),
)


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    points = {name.lower(): f"theirs_terms:{name}" for name in NAMES} | {"odd": "theirs_terms:seen"}
    folder = install(tmp_path / "theirs", {"theirs_terms": THEIRS}, {"objectives": points})
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("theirs_terms", None)


def algo_with(*names, **more) -> AlgoConfig:
    return load_config(None, {**{f"algo.{name}": {} for name in names}, **more}).algo


@cases(
    "name, needs",
    [("plain", set()), ("lossy", {"every_row"}), ("objective", {"every_row"}), ("chosen", set())],
)
def test_a_term_with_a_loss_needs_every_row_unless_it_names_its_tokens(theirs, name, needs):
    assert check_own_parts(algo_with(name)) == needs


def test_terms_of_all_packages_are_in_one_order(theirs):
    algo = algo_with("objective", "plain", "chosen", "lossy", **{"algo.entropy_coef": 0.1})
    names = [type(it).__name__ for it in all_terms(algo)]
    assert [name for name in names if name in NAMES] == ["Plain", "Chosen", "Lossy", "Objective"]
    assert len(names) == 5
    assert names[0] == "Plain"
    assert names[-1] == "Objective"


@cases(
    "name, loss, batch",
    [
        ("looking", (False, False), (False, False)),
        ("comparing", (True, False), (True, False)),
        ("spread", (False, True), (False, True)),
    ],
)
def test_a_trial_has_what_a_term_needs_and_no_more(theirs, name, loss, batch):
    check_own_parts(algo_with(name, **{"algo.kl.coef": 0.1, "algo.kl.reference": "initial"}))
    seen = sys.modules["theirs_terms"].seen  # pyright: ignore[reportAttributeAccessIssue]
    assert (seen["loss"], seen["batch"]) == (loss, batch)
    assert len(seen["advantages"]) == 8
    assert seen["advantages"].unique().numel() == 8


@cases(
    "name, said",
    [
        ("unmade", r"algo\.unmade cannot be made: OSError\('no disk'\)"),
        ("raising", r"algo\.raising: end raised KeyError: 'end' \("),
        ("hungry", "algo.hungry with the need 'food': no installed package provides it"),
        ("worded", r"algo\.worded: uses returned a str; expected a tensor \[8\] or None"),
    ],
)
def test_a_term_that_fails_is_named(theirs, name, said):
    with pytest.raises(ConfigError, match=said):
        check_own_parts(algo_with(name))


def test_a_term_with_models_is_not_tried(theirs):
    assert check_own_parts(algo_with("modelled")) == set()


def test_what_is_no_term_is_refused(theirs):
    with pytest.raises(ConfigError, match=r"'odd'.*expected a (sub)?class"):
        check_own_parts(algo_with("odd"))
