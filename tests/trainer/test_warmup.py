"""Supervised learning: the loss is plain cross-entropy, however the rows are packed."""

import json

import numpy as np
import pytest
import torch
from arl_warmup.keys import CHECKPOINTS, ROWS, STEPS, InitConfig
from arl_warmup.method import packed
from arl_warmup.trainer import learn, read_rows, train_in, warm_up_trainer
from trainer_samples import make_row, plain_logprobs, replaced
from transformers import AutoModelForCausalLM

from agentgym_rl.config import Config, TrainerConfig
from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import Policy, take_step


def rows(count: int = 10):
    """As data has them: at temperature 1."""
    rng = np.random.default_rng(0)
    made = [make_row(rng, int(rng.integers(6, 14))) for _ in range(count)]
    return [replaced(row, temperatures=row.loss_mask.astype(np.float32)) for row in made]


def learned(tiny_model, world, *, budget: int = 512, **init):
    """What each step came to, and the weights after the last."""
    init = InitConfig(method="sft", data="d", rows_per_step=4, **init)
    trainer = TrainerConfig().model_copy(update={"max_tokens_per_microbatch": budget})
    policy = Policy.load(tiny_model, world, trainer=trainer, master_dtype=torch.float64)
    steps = list(learn(policy, rows(), init, trainer, seed=1))
    return steps, torch.cat([p.detach().flatten() for p in policy.full_state().values()])


def test_the_first_loss_is_plain_cross_entropy_and_it_falls(tiny_model, world):
    steps, _ = learned(tiny_model, world, epochs=8, learning_rate=1e-2)
    assert [(s["step"], s["steps"]) for s in steps] == [(i, 24) for i in range(24)]
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    with torch.no_grad():
        losses = [-plain_logprobs(model, row) for row in rows()]
    means = [
        torch.cat([losses[i] for i in picked]).mean().item()
        for picked in torch.combinations(torch.arange(10), 4).tolist()
    ]
    assert min(abs(steps[0]["loss"] - mean) for mean in means) < 1e-9
    assert steps[-1]["loss"] < steps[0]["loss"] / 2


def test_micro_batches_change_nothing(tiny_model, world):
    whole, weights = learned(tiny_model, world, epochs=2)
    cut, same = learned(tiny_model, world, epochs=2, budget=14)
    assert [s["loss"] for s in cut] == pytest.approx([s["loss"] for s in whole], abs=1e-9)
    assert torch.allclose(weights, same, rtol=0, atol=1e-9)


def test_a_row_that_no_micro_batch_holds_is_an_error_of_the_trainer(tiny_model, world):
    with pytest.raises(TrainerError, match="batch cannot be packed"):
        learned(tiny_model, world, budget=5)


def test_epochs_have_orders_of_their_own_and_a_seed_has_the_same(tiny_model, world):
    steps, _ = learned(tiny_model, world, epochs=2, learning_rate=1e-12)
    again, _ = learned(tiny_model, world, epochs=2, learning_rate=1e-12)
    assert steps == again
    losses = [round(s["loss"], 9) for s in steps]
    assert losses[:3] != losses[3:]


def test_rows_come_back_and_others_are_refused(tmp_path):
    path = tmp_path / "rows.msgpack"
    path.write_bytes(packed(rows(3)))
    for found, written in zip(read_rows(path), rows(3), strict=True):
        assert np.array_equal(found.tokens, written.tokens)
        assert np.array_equal(found.loss_mask, written.loss_mask)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(TrainerError, match="cannot read the rows"):
        read_rows(path)


def warmed_up(tiny_model, world, folder, **how) -> tuple[list[dict], bytes]:
    """The steps of a warm-up with a checkpoint after each, and the weights of its model."""
    init = {"method": "sft", "data": "d", "rows_per_step": 4, "epochs": 2}
    config = Config.model_validate({"init": init, "trainer": {"learning_rate": 1e-3}})
    train_in(folder, config, world, model_dir=tiny_model, save_every_s=0, **how)
    steps = [json.loads(line) for line in (folder / STEPS).read_text().splitlines()]
    return steps, (folder / "model" / "model.safetensors").read_bytes()


def test_a_warm_up_goes_on_from_a_checkpoint_as_if_nothing_had_happened(
    tiny_model, world, tmp_path
):
    (tmp_path / ROWS).write_bytes(packed(rows()))
    steps, weights = warmed_up(tiny_model, world, tmp_path)
    assert len(steps) == 6
    (checkpoint,) = (tmp_path / CHECKPOINTS).glob("step-*")
    assert checkpoint.name == "step-6"
    again = tmp_path / "again"
    again.mkdir()
    (again / ROWS).write_bytes(packed(rows()))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("arl_warmup.trainer.take_step", ended_after(2))
        with pytest.raises(KeyboardInterrupt):
            warmed_up(tiny_model, world, again)
    left = (again / STEPS).read_text().splitlines()
    assert len(left) == 2
    rest = warmed_up(tiny_model, world, again, resume=again / CHECKPOINTS / "step-2")
    assert rest == (steps, weights)


def ended_after(steps: int):
    """A step of the optimizer that ends the process after some."""
    left = iter(range(steps))

    def step(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return take_step(*args)

    return step


@pytest.mark.parametrize(
    ("cores", "trainer", "engine", "threads"),
    [
        (2, {}, {}, 2),  # the engine's thread, which nobody uses yet
        (1, {}, {}, 1),
        (64, {"num_threads": 2}, {"num_threads": 3, "num_servers": 4}, 14),
        (8, {"num_threads": 2}, {"num_threads": 3, "num_servers": 4}, 8),
        (64, {"num_ranks": 2}, {"num_servers": 4}, 3),
        (2, {"num_threads": 4}, {}, 4),  # as configured
        (2, {}, {"type": "openai"}, 1),
    ],
)
def test_a_warm_up_uses_the_threads_of_engines_as_well(
    monkeypatch, cores, trainer, engine, threads
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    config = Config.model_validate({"trainer": trainer, "engine": engine})
    assert warm_up_trainer(config.trainer, config.engine).num_threads == threads
