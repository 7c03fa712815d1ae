"""Groups at once, adapted, against every fixed number of them, in virtual time."""

import pytest
from arl_plan.episodes import DrawnShapes, Limits
from arl_plan.rates import (
    EngineRates,
    LengthRates,
    Rates,
    RolloutRates,
    SandboxRates,
    TrainerRates,
    WeightRates,
)
from arl_plan.report import search_text
from arl_plan.search import search, settled
from arl_plan.simulation import simulate

from agentgym_rl.config import load_config

ENGINE = EngineRates(step_s=0.02, step_s_per_request=0.002, step_s_per_context_token=2e-7)
SETTINGS = {
    "short": (ENGINE, LengthRates(prompt_tokens=100, reply_tokens=100, reply_sigma=0.4)),
    "long-tailed": (
        ENGINE.model_copy(update={"kv_tokens": 30_000}),
        LengthRates(prompt_tokens=100, reply_tokens=400, reply_sigma=1.1),
    ),
    "slow tools": (
        ENGINE,
        LengthRates(prompt_tokens=100, reply_tokens=40, turns=3, tool_s=20.0, tool_sigma=0.5),
    ),
}
NO_SANDBOXES = SandboxRates()
SANDBOXES = SandboxRates(at_once=8, start_s=0.1, verify_s=4.0, cpu=0.01)
KEYS = {
    "steps": 40,
    "rollout.groups_per_batch": 4,
    "rollout.group_size": 4,
    "rollout.max_staleness": 4,
    "rollout.max_tokens": 4000,
    "engine.max_model_len": 8000,
    "engine.max_num_seqs": 64,
    "trainer.max_tokens_per_microbatch": 8192,
}


def episodes_per_s(setting, **rollout):
    """Once the run has got going."""
    return predicted(setting, **rollout).episodes_per_s


def predicted(setting, *, sandboxes=NO_SANDBOXES, **rollout):
    """The prediction for a run, once it has got going."""
    engine, lengths = SETTINGS[setting]
    rates = Rates(
        engine=engine,
        lengths=lengths,
        sandboxes=sandboxes,
        trainer=TrainerRates(train_microbatch_s=0.2, train_s_per_token=1e-4, optimizer_s=0.1),
        weights=WeightRates(stage_s=0.2, pause_s=0.1),
        rollout=RolloutRates(turn_s=0.001),
    )
    keys = {f"rollout.{key}": value for key, value in rollout.items()}
    config = load_config(None, {**KEYS, **keys})
    shapes = DrawnShapes(lengths, Limits(4000, 8000), seed=config.seed)
    found = simulate(config, rates, shapes, skip=16)
    assert found.staleness_max <= 4
    return found


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_adapted_it_is_nearly_as_fast_as_the_best_fixed_number(setting):
    fixed = {n: episodes_per_s(setting, max_concurrent=n) for n in (1, 4, 8, 14, 20)}
    best = max(fixed.values())
    assert fixed[1] < 0.7 * best, "a bad value to start from"
    for start in (1, 20):
        adapted = episodes_per_s(setting, concurrency="adaptive", start_concurrent=start)
        assert adapted >= 0.9 * best, (start, adapted, fixed)


@pytest.mark.slow
def test_no_more_episodes_start_while_others_wait_for_sandboxes():
    best = predicted("short", sandboxes=SANDBOXES, max_concurrent=20)
    assert best.in_line_s > 5 * best.tests_s, "80 episodes have 8 sandboxes"
    found = predicted("short", sandboxes=SANDBOXES, concurrency="adaptive", start_concurrent=1)
    # 8 sandboxes are 2 groups: as many may stand in line, and others wait for the model.
    assert found.max_concurrent <= 8
    assert found.in_line_s < found.tests_s
    assert found.episodes_per_s >= 0.9 * best.episodes_per_s
    lowered = predicted("short", sandboxes=SANDBOXES, concurrency="adaptive", start_concurrent=20)
    assert lowered.max_concurrent < 14


@pytest.mark.slow
def test_the_search_tries_it():
    config = load_config(None, {**KEYS, "steps": 20})
    shapes = DrawnShapes(LengthRates(reply_tokens=50), Limits(4000, 8000), seed=1)
    rates = Rates(engine=ENGINE, trainer=TrainerRates(train_microbatch_s=0.2))
    shapes_of = lambda config: shapes  # noqa: E731
    tried, best = search(settled(config, rates, shapes_of), rates, shapes_of, gpus=None)
    adapted = [t for t in tried if t.config.rollout.concurrency == "adaptive"]
    assert adapted
    assert "adapted" in search_text(tried, best)
    assert all(t.prediction.max_concurrent <= 5 * 4 for t in adapted)
