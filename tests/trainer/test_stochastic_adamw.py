"""AdamW whose states, and parameters if they are bfloat16, are rounded stochastically."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from arl_optimizers import STATE_BYTES
from arl_optimizers.adamw import StochasticAdamW
from arl_trial.own_optimizer import check_optimizer
from rank_child import TRAINER, make_stepper, train
from stochastic_child import gradients, make, model_of
from trainer_samples import save_checkpoint

from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.trainer import make_optimizer, set_learning_rate, take_step
from agentgym_rl.trainer.checkpoint import load_checkpoint
from agentgym_rl.weights import fingerprint
from tests.e2e.forked import run_all
from tests.kit.cases import cases

HALF = torch.bfloat16
OURS = TRAINER.model_copy(update={"optimizer": TrainerConfig(optimizer="adamw_bf16").optimizer})


def stepped(start: torch.Tensor, gradient: torch.Tensor, steps: int, **options) -> StochasticAdamW:
    """An optimizer after steps with the same gradient."""
    optimizer = StochasticAdamW([torch.nn.Parameter(start.clone())], **options)
    (p,) = optimizer.param_groups[0]["params"]
    for _ in range(steps):
        p.grad = gradient.to(p.dtype)
        optimizer.step()
    return optimizer


def only(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    return optimizer.param_groups[0]["params"][0].detach()


def test_the_short_name_stands_for_the_path():
    config = TrainerConfig(optimizer="adamw_bf16", optimizer_options={"betas": (0.8, 0.9)})
    assert config.optimizer in STATE_BYTES
    assert TrainerConfig(optimizer=config.optimizer).optimizer == config.optimizer
    check_optimizer(config)
    optimizer = make_optimizer(torch.nn.Linear(3, 5), config)
    assert isinstance(optimizer, StochasticAdamW)
    assert {group["betas"] for group in optimizer.param_groups} == {(0.8, 0.9)}
    states = [it for state in optimizer.state.values() for n, it in state.items() if n != "step"]
    assert {it.dtype for it in states} == {HALF}
    assert not any(it.any() for it in states)
    held = sum(it.nbytes for it in states)
    assert held == STATE_BYTES[config.optimizer] * sum(p.numel() for p in optimizer.state)


def test_states_are_unbiased():
    """One step: 200,000 states whose exact value lies between two numbers of bfloat16."""
    gradient = torch.full((200_000,), 1 + 1 / 3)
    (state,) = stepped(torch.zeros(200_000), gradient, 1).state.values()
    for name, exact in (("exp_avg", 0.1 * (4 / 3)), ("exp_avg_sq", 0.01 * (4 / 3) ** 2)):
        values = state[name].double()
        gap = float(values.max() - values.min())
        assert len(values.unique()) == 2
        assert gap / exact < 2**-7
        spread = gap / 2 / math.sqrt(len(values))  # at most, of the mean
        assert abs(float(values.mean()) - exact) < 4 * spread, name


def test_a_mean_square_follows_where_rounding_to_nearest_would_stand_still():
    """With a decay of 0.999 a step moves it by a thousandth: less than half a unit of bfloat16."""
    numbers = 20_000
    optimizer = stepped(torch.zeros(numbers), torch.ones(numbers), 1, betas=(0.9, 0.999))
    (state,) = optimizer.state.values()
    nearest = torch.ones(1, dtype=HALF)
    state["exp_avg_sq"].fill_(1.0)
    for _ in range(300):
        only_p = optimizer.param_groups[0]["params"][0]
        only_p.grad = torch.zeros(numbers)
        optimizer.step()
        nearest = (nearest.float() * 0.999).to(HALF)
    exact = 0.999**300
    assert float(nearest) == 1.0
    assert float(state["exp_avg_sq"].double().mean()) == pytest.approx(exact, rel=2e-3)


def test_updates_below_half_a_unit_move_bfloat16_parameters_in_expectation():
    """1 + 1/128 is the next number after 1; a step of 1e-4 is a fortieth of half the gap."""
    start, gradient = torch.ones(50_000, dtype=HALF), -torch.ones(50_000)
    moved = stepped(start, gradient, 20, lr=1e-4)
    assert float(only(moved).double().mean()) == pytest.approx(1 + 20e-4, abs=2e-4)
    plain = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([plain], lr=1e-4, weight_decay=0.0)
    for _ in range(20):
        plain.grad = gradient.to(HALF)
        optimizer.step()
    assert bool((plain == 1).all()), "rounded to nearest it would not have moved"


def test_a_step_at_the_rate_0_changes_nothing():
    start = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(HALF)
    assert torch.equal(only(stepped(start, torch.ones(1000), 3, lr=0.0)), start)


def test_numbers_that_are_not_finite_stay_so():
    gradient = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    (state,) = stepped(torch.zeros(4), gradient, 1).state.values()
    assert state["exp_avg"].isfinite().tolist() == [False, False, False, True]
    assert state["exp_avg"][0].isnan()


@cases("dtype, near", [(torch.float32, 1.05), (HALF, 1.5)])
def test_a_regression_converges_as_with_float32_states(dtype, near):
    torch.manual_seed(0)
    inputs = torch.randn(512, 32)
    targets = inputs @ torch.randn(32, 4) + 0.5 * torch.randn(512, 4)
    found = []
    for kind, of in ((torch.optim.AdamW, torch.float32), (StochasticAdamW, dtype)):
        weights = torch.nn.Parameter(torch.zeros(32, 4, dtype=of))
        optimizer = kind([weights], lr=0.03, betas=(0.9, 0.99), weight_decay=0.0)
        for step in range(400):
            rows = torch.arange(step * 64, step * 64 + 64) % 512
            loss = (inputs[rows] @ weights.float() - targets[rows]).square().mean()
            (weights.grad,) = torch.autograd.grad(loss, weights)
            set_learning_rate(optimizer, 0.03 * (1 - step / 400))
            optimizer.step()
        found.append(float((inputs @ weights.detach().float() - targets).square().mean()))
    least = float((inputs @ torch.linalg.lstsq(inputs, targets).solution - targets).square().mean())
    assert found[0] - least < 0.01
    assert found[1] < near * found[0]


def test_no_other_random_number_matters_and_seeds_steps_and_parameters_do():
    gradient = torch.full((4096,), 1 / 3)
    state = torch.get_rng_state()
    one = stepped(torch.zeros(4096), gradient, 3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    same, other = stepped(torch.zeros(4096), gradient, 3), stepped(
        torch.zeros(4096), gradient, 3, seed=1
    )  # fmt: skip
    (a,), (b,), (c,) = (it.state.values() for it in (one, same, other))
    assert torch.equal(a["exp_avg"], b["exp_avg"])
    assert not torch.equal(a["exp_avg"], c["exp_avg"])
    pair = StochasticAdamW([torch.nn.Parameter(torch.zeros(4096)) for _ in range(2)])
    for p in pair.param_groups[0]["params"]:
        p.grad = gradient
    pair.step()
    first, second = (it["exp_avg"] for it in pair.state.values())
    assert not torch.equal(first, second)


def test_a_matrix_that_is_not_contiguous_is_rounded_as_its_rows():
    start, gradient = torch.randn(6, 5).to(HALF), torch.randn(6, 5).to(HALF)
    plain = stepped(start, gradient, 3, lr=0.1)
    turned = StochasticAdamW([torch.nn.Parameter(start.t().contiguous().t())], lr=0.1)
    for _ in range(3):
        (p,) = turned.param_groups[0]["params"]
        p.grad = gradient
        turned.step()
    assert torch.equal(only(plain), only(turned))


@cases("settings", [{"betas": (0.9, 1.0)}, {"eps": -1.0}, {"weight_decay": -1.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match="expected"):
        StochasticAdamW([torch.nn.Parameter(torch.zeros(2))], **settings)


def test_offload_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="cpu_offload takes them on the CPU: use adamw"):
        load_config({"trainer": {"optimizer": "adamw_bf16", "cpu_offload": True}})


def test_gradients_in_bfloat16_have_a_norm_in_float32():
    """torch's own rounds the norm of each tensor to 8 bits."""
    p = torch.nn.Parameter(torch.zeros(999, dtype=HALF))
    p.grad = torch.full((999,), 0.5, dtype=HALF)
    norm = take_step(torch.optim.SGD([p], lr=1.0), 1.0)
    assert norm == pytest.approx(0.5 * math.sqrt(999), rel=1e-6)
    assert float(p.detach().double().norm()) == pytest.approx(1.0, rel=4e-3)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(tiny_model, world, tmp_path, lora):
    from arl_lora.keys import LoraConfig

    adapter = LoraConfig(rank=4, alpha=8) if lora else None
    straight, resumed = (
        make_stepper(tiny_model, world, trainer=OURS, lora=adapter) for _ in range(2)
    )
    train(straight, 0)
    path = save_checkpoint(
        tmp_path, straight.policy, straight.optimizer, step=1, config_hash="", keep=1
    )
    torch.rand(7)
    load_checkpoint(path, resumed.policy, resumed.optimizer)
    states = [s[n] for s in resumed.optimizer.state.values() for n in ("exp_avg", "exp_avg_sq")]
    assert {it.dtype for it in states} == {HALF}
    for step in (1, 2):
        assert train(resumed, step) == train(straight, step)
    assert fingerprint(resumed.policy.full_state()) == fingerprint(straight.policy.full_state())


@pytest.mark.slow
def test_two_ranks_round_as_one_and_their_checkpoint_is_continued_by_one(tmp_path):
    """The same gradients on both sides: then parameters and states are the same to the last bit,
    also as two copies of the model (HSDP)."""
    child = Path(__file__).with_name("stochastic_child.py")
    run_all(child, *((f"file://{tmp_path}/meet", rank, tmp_path) for rank in (0, 1)))
    for name, dtype in (("plain", torch.float32), ("halves", HALF), ("replicas", HALF)):
        model = model_of(dtype)
        optimizer = make(model)
        for step in range(4):
            gradients(model, step)
            optimizer.step()
        found = torch.load(tmp_path / f"{name}.pt")
        torch.testing.assert_close(found["model"], model.state_dict(), rtol=0, atol=0)
        states = [{n: it for n, it in s.items() if n != "step"} for s in optimizer.state.values()]
        torch.testing.assert_close(found["states"], states, rtol=0, atol=0)
