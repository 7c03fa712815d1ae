"""Advantages that somebody else computes: what the function is given, what is refused."""

import pytest
import torch

from agentgym_rl.algo import check_own_parts, needs
from agentgym_rl.algo.own_advantage import check_advantage, made_up_batch
from agentgym_rl.config import AlgoConfig
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases

HERE = "tests.algo.test_own_advantage"


def paid(batch, *, share=1.0):
    return batch.rewards[batch.episodes] + share * batch.turn_rewards


def short(batch):
    return batch.rewards


def endless(batch):
    return batch.turn_returns / 0.0


def worded(batch):
    return "advantage"


def mistaken(batch):
    return batch.reward


def of_nothing():
    return 0


@needs("reference")
def near(batch):
    return batch.reference - batch.behavior_logprobs


@needs("reference")
def drawn(tokens, log_ratio):
    return tokens.advantages * log_ratio - (tokens.logprobs - tokens.reference) ** 2


def test_it_may_read_rewards_of_episodes_and_turns():
    check_advantage(AlgoConfig(advantage=f"{HERE}:paid", advantage_options={"share": 0.5}))


@cases(
    "name, said",
    [
        ("short", r"returned \[4\] for 8 tokens"),
        ("endless", "not all finite"),
        ("worded", "returned a str"),
        ("mistaken", "raised AttributeError"),
        ("of_nothing", r"takes \(\), and too many positional arguments; expected a function of"),
        ("missing", "cannot import"),
        ("HERE", "is a str; expected a function"),
    ],
)
def test_what_does_not_keep_the_contract_is_refused(name, said):
    with pytest.raises(ConfigError, match=said) as caught:
        check_advantage(AlgoConfig(advantage=f"{HERE}:{name}"))
    assert f"{HERE}:{name}" in str(caught.value)


@cases("key, value", [("baseline", "none"), ("scale", "batch_std"), ("shuffle_advantages", True)])
def test_it_takes_the_place_of_baseline_and_scale(key, value):
    with pytest.raises(ValueError, match=f"{key} .* does nothing unless advantage is unset"):
        AlgoConfig.model_validate({"advantage": f"{HERE}:paid", key: value})


def test_it_needs_no_group_of_several():
    assert not AlgoConfig(advantage=f"{HERE}:paid").in_group


def test_a_function_gets_the_reference_that_it_asks_for():
    named = {"kl": {"reference": "initial"}}
    for key, name in (("advantage", "near"), ("loss", "drawn")):
        algo = AlgoConfig.model_validate({key: f"{HERE}:{name}", **named})
        assert check_own_parts(algo) == {"reference", "every_row"}
        with pytest.raises(ConfigError, match=f"{name}' needs a reference model: set algo.kl"):
            check_own_parts(AlgoConfig.model_validate({key: f"{HERE}:{name}"}))


def test_a_reference_that_nothing_reads_is_refused():
    algo = AlgoConfig.model_validate({"advantage": f"{HERE}:paid", "kl": {"reference": "initial"}})
    with pytest.raises(ConfigError, match=r"kl\.reference 'initial' does nothing"):
        check_own_parts(algo)
    with pytest.raises(ValueError, match=r"kl\.reference does nothing unless kl\.coef"):
        AlgoConfig.model_validate({"kl": {"reference": "initial"}})
    with pytest.raises(ValueError, match=r"kl\.estimator does nothing unless kl\.coef"):
        AlgoConfig.model_validate({"advantage": f"{HERE}:paid", "kl": {"estimator": "k1"}})


def test_an_unknown_need_is_refused():
    with pytest.raises(ValueError, match="needs \\['values'\\]; expected some of reference"):
        needs("values")  # pyright: ignore[reportArgumentType]


def test_options_that_it_has_not_are_refused():
    algo = AlgoConfig(advantage=f"{HERE}:paid", advantage_options={"tau": 1})
    with pytest.raises(ConfigError, match="unexpected keyword argument 'tau'"):
        check_advantage(algo)


def test_a_batch_for_trials_is_of_one_rank():
    ranks = made_up_batch(()).ranks
    assert ranks.gather(3.0) == [3.0]
    assert ranks.moments(torch.tensor([1.0, 3.0])) == (2.0, 2.0, 2)


def test_a_batch_for_trials_could_be_a_real_one():
    batch = made_up_batch(("proximal", "reference"))
    of_tokens = (batch.episodes, batch.rows, batch.turns, batch.positions, batch.staleness)
    of_tokens += (batch.turn_rewards, batch.turn_returns, batch.behavior_logprobs)
    assert {len(found) for found in of_tokens} == {batch.num_tokens} == {8}
    assert batch.lengths.tolist() == torch.bincount(batch.episodes).tolist() == [2] * 4
    assert batch.rows.tolist() == batch.episodes.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert batch.turns.tolist() == [0, 1] * 4
    assert batch.positions.min() > 0
    assert (batch.positions[1::2] > batch.positions[::2]).all()
    assert batch.rewards.tolist() == batch.raw_rewards.tolist() == [0, 1, 0, 0]
    assert (batch.groups.tolist(), batch.truncated.sum()) == ([0, 0, 1, 1], 1)
    assert batch.reference is not None
    for logprobs in (batch.behavior_logprobs, batch.reference):
        assert logprobs.max() < 0
        assert len(logprobs.unique()) == 8
    assert batch.proximal is batch.behavior_logprobs
    assert (batch.reference != batch.proximal).all()
    assert batch.num_minibatches > 1
    for token, (episode, turn) in enumerate(zip(batch.episodes, batch.turns, strict=True)):
        credit = batch.credits[episode]
        assert (credit.parents, credit.lineages) == ([-1, 0], [0, 0])
        paid = [*credit.turn_rewards, 0.0, 0.0][int(turn) : 2]
        assert batch.turn_rewards[token] == paid[0]
        assert batch.turn_returns[token] == sum(paid) + sum(credit.lineage_rewards)
    assert batch.turn_rewards.any()
    assert batch.staleness.sum() == 0
