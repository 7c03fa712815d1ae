"""The tolerance for logits that are computed in another way: larger for a model that amplifies
rounding, and never so large that another computation passes."""

import math

import pytest
import torch
from torch import Tensor, nn

from agentgym_rl.algo import relative_difference
from agentgym_rl.algo.rounding import tolerance

LEAST = 1e-4


class Model(nn.Module):
    """Layers that multiply a small change of their input by about `gain`."""

    def __init__(self, gain: float, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(8, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.gain = gain

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = torch.sin(self.gain * layer(hidden))
        return hidden


def found(model: nn.Module, difference: float = LEAST) -> tuple[float, Tensor]:
    tokens = torch.arange(8)
    with torch.no_grad():
        return tolerance(model, difference, LEAST, lambda: model(tokens)), model(tokens)


def test_a_tame_model_keeps_the_least_tolerance_and_its_own_forward():
    model = Model(gain=1.0)
    allowed, expected = found(model)
    assert allowed == LEAST
    assert torch.equal(model(torch.arange(8)), expected), "a hook is left"


@pytest.mark.parametrize("gain", [8.0, 10.0, 12.0])
def test_a_model_that_amplifies_rounding_gets_what_its_rounding_explains(gain):
    model = Model(gain)
    allowed, expected = found(model)
    with torch.no_grad():
        exact = model.double()(torch.arange(8))
    assert max(LEAST, relative_difference(expected.double(), exact)) < allowed < 1e-2


def test_a_chaotic_model_gets_no_tolerance_that_hides_another_computation():
    allowed, _ = found(Model(gain=1e4))
    assert allowed == 1e-2


@pytest.mark.parametrize("difference", [LEAST / 2, 0.5, math.inf, math.nan])
def test_nothing_is_tried_where_it_could_not_change_the_verdict(difference):
    def compute() -> Tensor:
        raise AssertionError

    assert tolerance(Model(gain=1.0), difference, LEAST, compute) == LEAST
