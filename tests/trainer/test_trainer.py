"""The trainer in this process: whole batches and single passes, and its files."""

import asyncio

import pytest
import torch

from agentgym_rl import Trainer, runs
from agentgym_rl.core import StepReport
from tests.kit.groups import make_group

SMALL = {"trainer.mismatch_stop": 1e9, "trainer.num_minibatches": 1, "trainer.warmup_steps": 0}
GROUPS = [make_group("a", [0, 0]), make_group("b", [0, 0, 0], size=3)]


@pytest.fixture
def trainer():
    with runs.temporary(overrides=SMALL) as run, Trainer.started(run) as found:
        yield found


def likelihood(tokens):
    """Make tokens of rewarded episodes likelier, and no others."""
    return -(tokens.logprobs * tokens.rewards).sum()


def logprobs(trainer) -> list[float]:
    found = asyncio.run(trainer.logprobs(GROUPS))
    assert [len(each) for each in found] == [2, 2, 3, 3, 3]
    return [float(each.sum()) for each in found]


def test_a_loss_of_ones_own_moves_the_log_probs_as_it_says(trainer):
    before = logprobs(trainer)
    loss = asyncio.run(trainer.forward_backward(GROUPS, likelihood))
    assert loss == pytest.approx(-(before[1] + before[3]), abs=1e-3)
    assert asyncio.run(trainer.optimizer_step(0)) > 0
    assert logprobs(trainer)[1] > before[1]


def test_the_tokens_of_a_loss_say_where_they_are_from(trainer):
    seen = []

    def loss(tokens):
        seen.extend(zip(tokens.episodes.tolist(), tokens.rewards.tolist(), strict=True))
        assert tokens.behavior_logprobs.tolist() == [-0.5] * len(tokens.logprobs)
        assert set(tokens.turns.tolist()) == set(tokens.staleness.tolist()) == {0}
        return tokens.logprobs.sum()

    asyncio.run(trainer.forward_backward(GROUPS, loss))
    assert sorted(set(seen)) == [(0, 0.0), (1, 1.0), (2, 0.0), (3, 1.0), (4, 0.0)]


def test_a_checkpoint_brings_the_weights_back(trainer):
    before = logprobs(trainer)
    folder = asyncio.run(trainer.save(0))
    report = asyncio.run(trainer.train(0, GROUPS))
    assert isinstance(report, StepReport)
    assert (report.version, report.group_ids) == (1, ["a", "b"])
    assert report.metrics["grad_norm"] > 0
    assert logprobs(trainer) != pytest.approx(before, abs=1e-4)
    assert trainer.load(folder).step == 0
    assert logprobs(trainer) == pytest.approx(before, abs=1e-6)


def test_tokens_are_compared_with_the_engine_only_under_published_weights(trainer, monkeypatch):
    seen = []
    check = lambda step, tokens, proximal: seen.append(step)  # noqa: E731
    monkeypatch.setattr(trainer._agreement, "check", check)
    asyncio.run(trainer.train(0, GROUPS))
    asyncio.run(trainer.train(1, GROUPS))  # nothing was published: no engine has these weights
    assert seen == [0]


def test_the_exported_model_is_that_of_the_trainer(trainer):
    from transformers import AutoModelForCausalLM

    asyncio.run(trainer.train(0, GROUPS))
    model = AutoModelForCausalLM.from_pretrained(trainer.export(trainer.run.folder / "export"))
    with torch.no_grad():
        rows = torch.arange(6)[None]
        found = model(rows).logits.log_softmax(-1)[0, 2:5].gather(1, rows[0, 3:, None])
    assert float(found.sum()) == pytest.approx(logprobs(trainer)[3], abs=1e-3)
