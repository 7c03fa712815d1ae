"""A small run whose rates are round numbers."""

import pytest
from arl_plan.episodes import DrawnShapes, Limits
from arl_plan.rates import EngineRates, LengthRates, Rates, RolloutRates, TrainerRates, WeightRates
from arl_plan.simulation import simulate

from agentgym_rl.config import load_config

RATES = Rates(
    engine=EngineRates(step_s=0.01, step_s_per_request=0.001, prefill_s_per_token=1e-4),
    trainer=TrainerRates(
        forward_microbatch_s=0.01,
        forward_s_per_token=1e-4,
        train_microbatch_s=0.02,
        train_s_per_token=3e-4,
        optimizer_s=0.01,
    ),
    weights=WeightRates(stage_s=0.05, pause_s=0.02),
    rollout=RolloutRates(turn_s=0.001),
    lengths=LengthRates(prompt_tokens=20, reply_tokens=30, reply_sigma=0.6, turns=1.5),
)


@pytest.fixture
def predicted():
    """A prediction of a run of 4 groups of 2, with these keys on top."""

    def predicted(keys=None, *, rates=RATES, skip=2):
        small = {
            "steps": 8,
            "rollout.groups_per_batch": 4,
            "rollout.group_size": 2,
            "rollout.max_tokens": 200,
        }
        config = load_config(None, small | (keys or {}))
        limits = Limits(config.rollout.max_tokens, config.own_engine.max_model_len)
        shapes = DrawnShapes(rates.lengths, limits, seed=config.seed)
        return simulate(config, rates, shapes, skip=skip)

    return predicted
