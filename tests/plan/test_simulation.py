"""A run in virtual time keeps the promises of a real one."""

from dataclasses import replace

import pytest
from arl_lora.keys import LoraConfig
from arl_objectives.keys.kl import KlConfig
from arl_objectives.keys.teacher import TeacherConfig
from arl_plan.command import Models
from arl_plan.probe import _shard
from arl_plan.rates import RolloutRates, SandboxRates
from arl_plan.trainer import proximal_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rl.config import AlgoConfig, TrainerConfig, load_config
from agentgym_rl.core import ConfigError, num_parameters
from agentgym_rl.models import BUNDLED_MODELS
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases

from .conftest import RATES

SOME = settings(max_examples=6, deadline=None)


@SOME
@given(st.data())
def test_no_batch_is_older_than_the_bound(data):
    from arl_plan.episodes import DrawnShapes, Limits
    from arl_plan.simulation import simulate

    bound = data.draw(st.integers(0, 3))
    keys = {
        "steps": 6,
        "seed": data.draw(st.integers(0, 1000)),
        "rollout.groups_per_batch": data.draw(st.integers(1, 4)),
        "rollout.group_size": 2,
        "rollout.max_staleness": bound,
        "rollout.max_concurrent": data.draw(st.integers(1, 12)),
        "rollout.interrupt": data.draw(st.sampled_from(["keep", "recompute", "abort", "wait"])),
        "engine.num_servers": data.draw(st.integers(1, 3)),
    }
    shapes = DrawnShapes(RATES.lengths, Limits(200, 512), seed=keys["seed"])
    found = simulate(load_config(None, keys), RATES, shapes)
    assert found.staleness_max <= bound
    times = [step.reported_s for step in found.steps]
    assert times == sorted(times)
    assert len(times) == 6


def test_the_same_seed_gives_the_same_prediction(predicted):
    assert predicted().numbers() == predicted().numbers()
    assert predicted().numbers() != predicted({"seed": 2}).numbers()


def test_a_simulated_run_warns_of_nothing(predicted, caplog):
    """It has no gradients, which a real one would be told of."""
    predicted()
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_more_engines_are_not_slower(predicted):
    speeds = [predicted({"engine.num_servers": number}).episodes_per_s for number in (1, 2, 4)]
    assert speeds[1] > 0.97 * speeds[0]
    assert speeds[2] > 0.97 * speeds[1]


def test_synchronous_runs_overlap_nothing(predicted):
    synchronous, asynchronous = predicted({"rollout.max_staleness": 0}), predicted()
    assert synchronous.overlap == 0
    assert synchronous.staleness_max == 0
    assert asynchronous.overlap > 0.1
    assert asynchronous.episodes_per_s > synchronous.episodes_per_s


def test_waiting_for_requests_costs_time(predicted):
    keep = predicted({"rollout.interrupt": "keep"})
    wait = predicted({"rollout.interrupt": "wait"})
    assert wait.weight_sync_s > keep.weight_sync_s
    assert wait.episodes_per_s < keep.episodes_per_s


def test_fewer_cores_than_processes_are_slower(predicted):
    alone = predicted(rates=RATES.model_copy(update={"cores": 1.0}))
    assert alone.episodes_per_s < predicted().episodes_per_s


def test_a_rollout_that_computes_too_much_is_what_all_wait_for(predicted):
    found = predicted(rates=RATES.model_copy(update={"rollout": RolloutRates(turn_s=0.2)}))
    assert found.rollout_busy > 0.7 > predicted().rollout_busy
    assert found.trainer_idle > predicted().trainer_idle


def test_sandboxes_may_be_what_all_wait_for(predicted):
    places = SandboxRates(at_once=2, start_s=0.1, verify_s=0.9, cpu=1.0)
    one_turn = RATES.lengths.model_copy(update={"turns": 1.0})
    rates = RATES.model_copy(update={"sandboxes": places, "lengths": one_turn})
    found = predicted({"steps": 20}, rates=rates)
    assert found.episodes_per_s == pytest.approx(2 / (0.1 + 0.9), rel=0.1)
    assert (found.sandbox_start_s, found.tests_s) == pytest.approx((0.1, 0.9))
    assert found.tools_s == 0
    parts_s = found.in_line_s + found.sandbox_start_s + found.tests_s
    assert found.in_line_s > found.tests_s
    assert 0 < found.episode_s - parts_s < 0.5  # the model
    (note,) = found.notes
    assert "16 episodes are played at once and 2 have a sandbox" in note
    assert "rollout.max_concurrent=2" in note
    assert predicted().tests_s == 0


def test_tools_hold_a_sandbox_and_its_processor(predicted):
    lengths = RATES.lengths.model_copy(update={"turns": 3.0, "tool_s": 0.5})
    places = SandboxRates(at_once=16, start_s=0.1, verify_s=0.5)
    rates = RATES.model_copy(update={"sandboxes": places, "lengths": lengths, "cores": 2.0})
    found = predicted(rates=rates)
    assert found.tools_s > 0.5
    assert found.sandbox_start_s > 0.1  # of two in most episodes
    alone = predicted(rates=rates.model_copy(update={"cores": 32.0}))
    assert alone.tests_s == pytest.approx(0.5)
    assert found.tests_s > 2 * alone.tests_s
    assert any("16 sandboxes at once on 2 processors" in note for note in found.notes)
    assert not any("processors:" in note for note in alone.notes)


def test_sandboxes_that_need_more_memory_than_there_is_are_noted(predicted):
    places = SandboxRates(at_once=16, verify_s=0.01, memory_mb=1024, machine_mb=8000)
    (note,) = predicted(rates=RATES.model_copy(update={"sandboxes": places})).notes
    assert "need 16,384 MB" in note
    assert note.endswith("7 fit")
    enough = places.model_copy(update={"machine_mb": 16_384})
    assert not predicted(rates=RATES.model_copy(update={"sandboxes": enough})).notes


def test_ranks_share_the_tokens(predicted):
    assert predicted({"trainer.num_ranks": 2}).compute_s < predicted().compute_s


def test_deadlines_that_would_be_missed_are_noted(predicted):
    (note,) = predicted({"rollout.episode_timeout_s": 0.01}).notes
    assert "rollout.episode_timeout_s 0.01" in note


def test_what_is_not_modelled_is_refused(predicted):
    with pytest.raises(ConfigError, match="critic"):
        predicted({"algo.baseline": "critic", "algo.scale": "none"})


def test_only_rows_of_later_minibatches_have_a_pass_before():
    shard = _shard(0, 8, vocab=50)
    first, second = shard.minibatches
    level = replace(shard, rewards=[1.0] * 8)
    in_reward = KlConfig(coef=0.1, reference="initial", placement="reward")
    assert proximal_rows([shard], AlgoConfig()) == [list(second)]
    assert proximal_rows([level], AlgoConfig()) == [[]]
    assert proximal_rows([level], AlgoConfig(kl=in_reward)) == [[*first, *second]]
    taught = {name: TeacherConfig(models="m", placement=name) for name in ("reward", "loss")}
    assert proximal_rows([level], AlgoConfig(teacher=taught["reward"])) == [[*first, *second]]
    assert proximal_rows([level], AlgoConfig(teacher=taught["loss"])) == [list(second)]


def test_a_teacher_takes_the_passes_of_its_size(predicted):
    """Those of a reference of the policy's size are the measure."""
    keys = {"algo.kl.coef": 0.1, "algo.kl.reference": "initial", "algo.teacher.models": "m"}
    trainer = RATES.trainer.model_copy(update={"teacher_passes": 3.0})
    found = predicted(keys, rates=RATES.model_copy(update={"trainer": trainer}))
    took = [step.seconds("teacher") / step.seconds("reference") for step in found.steps]
    assert took == pytest.approx([3.0] * len(took))


def test_the_memory_and_passes_of_teachers_are_those_of_their_sizes():
    other = BUNDLED_MODELS["bundled/agents"]
    teacher = {"models": ["bundled/math", str(other), "http://there", "owner/unknown"]}
    kl = KlConfig(coef=0.1, reference="initial")
    algo = AlgoConfig(teacher=TeacherConfig.model_validate(teacher), kl=kl)
    models, sizes = Models.of(algo, BUNDLED), (num_parameters(BUNDLED), num_parameters(other))
    assert models.teacher_passes == pytest.approx(1 + sizes[1] / sizes[0] + 1)
    memory = models.memory(TrainerConfig(num_ranks=2), None, dtype="float32")
    assert memory is not None
    assert memory.frozen == 4 * (2 * sizes[0] + sizes[1])  # what is not here has the policy's size
    assert memory.rank == (16 * sizes[0] + memory.frozen) / 2
    assert Models.of(AlgoConfig(), BUNDLED).teacher_passes == 0


def test_the_memory_of_a_model_known_by_its_size_alone():
    """Two ranks hold a half each, and so do four that are two copies."""
    algo, models = AlgoConfig(), Models.of(AlgoConfig(), BUNDLED)
    for trainer, size in (
        (TrainerConfig(num_ranks=2), 16 / 2),
        (TrainerConfig(num_ranks=4, num_replicas=2), 16 / 2),
        (TrainerConfig(optimizer="muon"), 12),
        (TrainerConfig(optimizer="adamw8bit"), 8 + 2 + 1 / 32),
        (TrainerConfig(optimizer="adamw_bf16"), 12),
        (TrainerConfig(layer_metrics=True), 20),
    ):
        memory = models.memory(trainer, None, dtype="float32", parameters=7.6e9)
        assert memory is not None
        assert memory.rank == pytest.approx(size * 7.6e9)
    lora = LoraConfig(rank=4)
    assert models.memory(TrainerConfig(), lora, dtype="float32", parameters=7.6e9) is None
    assert Models.of(algo, None).memory(TrainerConfig(), lora, dtype="float32") is None


@cases(
    "keys, said",
    [
        ({"algo.leave_out": ["truncated"]}, "algo.leave_out is not simulated: every episode"),
        ({"algo.reward.parts": {"a": 1.0}}, "algo.reward.parts is not simulated: no group has"),
        ({"rollout.curriculum": "task"}, "rollout.curriculum is not simulated: all tasks"),
        ({"rollout.group_reward": "m:f"}, "rollout.group_reward is not simulated: it takes"),
    ],
)
def test_what_is_not_simulated_is_said(predicted, keys, said):
    assert [note for note in predicted(keys).notes if note.startswith(said)]
    assert not [note for note in predicted().notes if "not simulated" in note]
