from __future__ import annotations

import pytest
import torch

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.trainer.optim import learning_rate, make_optimizer, take_step
from tests.kit.cases import cases

SCHEDULES = {
    "constant": [1, 1, 1, 1, 1],
    "linear": [1, 0.775, 0.55, 0.325, 0.1],
    "cosine": [1, 0.8682, 0.55, 0.2318, 0.1],
}


@cases("schedule", SCHEDULES)
def test_schedules_end_at_the_floor(schedule):
    config = TrainerConfig(learning_rate=1.0, schedule=schedule, learning_rate_floor=0.1)
    found = [learning_rate(config, step, num_steps=5) for step in range(5)]
    assert found == pytest.approx(SCHEDULES[schedule], abs=1e-4)


@cases("schedule", SCHEDULES)
def test_warm_up_is_linear_and_comes_first(schedule):
    config = TrainerConfig(
        learning_rate=1.0, schedule=schedule, learning_rate_floor=0.1, warmup_steps=3
    )
    found = [learning_rate(config, step, num_steps=8) for step in range(8)]
    assert found == pytest.approx([0.25, 0.5, 0.75, *SCHEDULES[schedule]], abs=1e-4)


def test_odd_lengths_stay_in_range():
    for num_steps, warmup in ((1, 0), (1, 5), (2, 2), (3, 1)):
        config = TrainerConfig(learning_rate=1.0, schedule="linear", warmup_steps=warmup)
        for step in range(num_steps + 2):
            assert 0 < learning_rate(config, step, num_steps=num_steps) <= 1


def test_weight_decay_spares_vectors():
    matrix, vector = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    optimizer = make_optimizer([matrix, vector], TrainerConfig(weight_decay=0.5))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    assert optimizer.defaults["fused"]


def test_a_step_clips_and_returns_the_norm_before_it():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.tensor([3.0, 4.0])
    assert take_step(optimizer, 1.0) == pytest.approx(5.0)
    assert parameter.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)
    assert parameter.grad is None
    parameter.grad = torch.tensor([float("inf"), 0.0])
    with pytest.raises(TrainerError, match="inf"):
        take_step(optimizer, 1.0)
    assert parameter.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)
