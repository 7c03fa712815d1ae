"""A loss that somebody else wrote: what it is given, what is made of it, what is refused."""

import math

import pytest
import torch

from agentgym_rl.algo import LossTokens, TokenObjective, policy_loss
from agentgym_rl.algo.own_loss import check_loss, made_up_tokens
from agentgym_rl.config import AlgoConfig
from agentgym_rl.core import ConfigError
from agentgym_rl.runtime.imports import check_findable
from tests.kit.cases import cases

HERE = "tests.algo.test_own_loss"


def gained(tokens, log_ratio, *, factor=1.0):
    return factor * log_ratio * tokens.advantages


def bounded(tokens, log_ratio):
    return TokenObjective(gained(tokens, log_ratio), log_ratio > 0.1)


def detached(tokens, log_ratio):
    return gained(tokens, log_ratio).detach()


def short(tokens, log_ratio):
    return log_ratio[:2]


def endless(tokens, log_ratio):
    return log_ratio / 0.0


def idle(tokens, log_ratio):
    return log_ratio * 0.0


def mistaken(tokens, log_ratio):
    return tokens.entropy


def worded(tokens, log_ratio):
    return "loss"


nothing = None


def tokens() -> LossTokens:
    logprobs = torch.tensor([-1.0, -2.0, -math.inf], dtype=torch.float64, requires_grad=True)
    return LossTokens(
        logprobs=logprobs,
        anchor=torch.tensor([-1.5, -2.0, -1.0], dtype=torch.float64),
        behavior_logprobs=torch.tensor([-1.5, -2.0, -1.0], dtype=torch.float64),
        behavior_weight=torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64),
        advantages=torch.tensor([1.0, -3.0, 1.0], dtype=torch.float64),
        weights=torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64),
        rows=torch.tensor([0, 0, 1]),
        turns=torch.tensor([0, 1, 0]),
    )


def test_it_is_weighted_and_dropped_tokens_are_left_out():
    given = tokens()
    algo = AlgoConfig(loss=f"{HERE}:gained", loss_options={"factor": 2.0})
    found = policy_loss(given, algo)
    found.loss.backward()
    assert found.loss.item() == -(0.25 * 0.5 * 2.0 * 0.5 * 1.0)
    assert given.logprobs.grad.tolist() == [-0.25 * 0.5 * 2.0, 0.25 * 2.0 * 2.0 * 3.0, 0.0]
    assert found.clipped.item() == 0


def test_it_may_count_what_it_bounds():
    assert policy_loss(tokens(), AlgoConfig(loss=f"{HERE}:bounded")).clipped.item() == 1


def test_the_example_equals_the_formula_of_its_paper(monkeypatch):
    monkeypatch.syspath_prepend("examples")
    given, algo = tokens(), AlgoConfig(loss="own_loss:topr", loss_options={"most": 0.5})
    check_loss(algo)
    good, bad = 0.25 * 0.5 * 1.0 * -1.0, 0.25 * 2.0 * 0.5 * -3.0 * -2.0
    assert policy_loss(given, algo).loss.item() == pytest.approx(-(good + bad))


@cases(
    "name, said",
    [
        ("detached", "without gradient"),
        ("short", r"returned \[2\] as value of 6 tokens"),
        ("endless", "not all finite"),
        ("idle", r"with the gradient \[0\.0"),
        ("mistaken", "raised AttributeError"),
        ("worded", "returned a str"),
        ("nothing", "is a NoneType; expected a function"),
        ("missing", "cannot import"),
    ],
)
def test_what_does_not_keep_the_contract_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        check_loss(AlgoConfig(loss=f"{HERE}:{name}"))


def test_options_that_it_has_not_are_refused():
    with pytest.raises(ConfigError, match="unexpected keyword argument 'tau'"):
        check_loss(AlgoConfig(loss=f"{HERE}:gained", loss_options={"tau": 1}))


@cases("loss", ["ppoo", "module:", ":loss", "a b:loss", "module:a.b"])
def test_a_loss_that_is_neither_ours_nor_a_function_is_refused(loss):
    with pytest.raises(ValueError, match="expected ppo, gspo"):
        AlgoConfig(loss=loss)


def test_our_own_losses_take_no_options():
    with pytest.raises(ValueError, match="loss_options"):
        AlgoConfig(loss_options={"tau": 1})


def test_a_module_that_is_not_there_is_refused_before_anything_starts():
    check_findable(f"{HERE}:gained", "algo.loss")
    with pytest.raises(ConfigError, match="no module 'nowhere_at_all'"):
        check_findable("nowhere_at_all.deep:loss", "algo.loss")


def test_tokens_for_trials_could_be_real_ones():
    given = made_up_tokens()
    assert given.weights.sum().item() == pytest.approx(1)
    assert (given.rows.tolist(), given.turns.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 1, 1])
    for logprobs in (given.logprobs, given.anchor, given.behavior_logprobs, given.reference):
        assert logprobs is not None
        assert logprobs.max() < 0
        assert len(logprobs) == 6
    assert given.live.tolist() == [True] * 5 + [False]
    assert {*given.log_ratio.sign().tolist()} == {-1, 0, 1}
    assert {*given.advantages.sign().tolist()} == {-1, 1}
    assert given.entropies is not None
    assert given.entropies.min() > 0
    assert given.index is not None
    assert given.index.tolist() == [*range(6)]
    assert given.first is given.index or given.first.tolist() == [*range(6)]
