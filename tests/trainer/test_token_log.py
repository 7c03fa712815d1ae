"""What a rank keeps of the tokens it trains: as the step had it, and without a trace in weights."""

import logging
from functools import partial

import pytest
import torch
from test_step import make_stepper, weights_of
from trainer_samples import make_items, make_shards

from agentgym_rl.storage import trained_tokens
from agentgym_rl.storage.trained_tokens import read_tokens, row_key, write_tokens
from agentgym_rl.trainer import Phases
from agentgym_rl.trainer.main import TokensOut


def trained(model, world, run=None, step: int = 0) -> torch.Tensor:
    (shard,) = make_shards(*make_items(), num_minibatches=2, step=step)
    stepper = make_stepper(model, world, dtype=torch.float32)
    kept = partial(TokensOut(run, rank=0, from_step=step).write, step) if run else None
    stepper.train_shard(shard, Phases(), on_tokens=kept)
    return weights_of(stepper)


def test_keeping_tokens_changes_no_bit_of_the_weights(tiny_model, world, tmp_path):
    assert torch.equal(trained(tiny_model, world), trained(tiny_model, world, tmp_path))
    assert read_tokens(tmp_path, 0)


def test_what_is_kept_is_what_was_trained(tiny_model, world, tmp_path):
    (shard,) = make_shards(*make_items(), num_minibatches=2)
    stepper = make_stepper(tiny_model, world, dtype=torch.float32)
    out = TokensOut(tmp_path, rank=0, from_step=0)
    before = stepper.train_shard(shard, Phases(), on_tokens=partial(out.write, 0))
    found = read_tokens(tmp_path, 0)
    rows = [it.row for part in shard.minibatches for it in part if it.row.num_trained]
    assert found.keys() == {row_key(row) for row in rows}
    assert all(len(found[row_key(row)][0]) == row.num_trained for row in rows)
    gaps = [
        abs(found[row_key(row)][0] - row.behavior_logprobs[row.loss_mask]).max() for row in rows
    ]
    assert max(gaps) == pytest.approx(before["mismatch/max_abs"], rel=1e-5)
    values = {float(value) for _, advantages in found.values() for value in advantages}
    assert min(values) < 0 < max(values)


def test_steps_that_are_trained_again_are_forgotten_first(tiny_model, world, tmp_path):
    for step in (1, 2):
        empty = torch.zeros(0).numpy()
        for rank in (0, 1):
            write_tokens(tmp_path, step=step, rank=rank, rows=[], proximal=empty, advantages=empty)
    trained(tiny_model, world, tmp_path, step=2)
    names = sorted(path.name for path in (tmp_path / "tokens").iterdir())
    assert names == [f"step-00000{n}.npz" for n in ("1.rank-0", "1.rank-1", "2.rank-0")]


def test_what_is_lost_goes_even_where_nothing_is_kept_any_more(tiny_model, world, tmp_path):
    trained(tiny_model, world, tmp_path, step=2)
    (shard,) = make_shards(*make_items(), num_minibatches=2, step=2)
    out = TokensOut(tmp_path, rank=0, from_step=2, keeps=False)
    make_stepper(tiny_model, world).train_shard(shard, Phases(), on_tokens=partial(out.write, 2))
    assert list((tmp_path / "tokens").iterdir()) == []


def test_a_full_disk_is_said_once_and_training_goes_on(
    tiny_model, world, tmp_path, monkeypatch, caplog
):
    def full(file, **arrays) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trained_tokens.np, "savez", full)
    (shard,) = make_shards(*make_items(), num_minibatches=2)
    stepper, out = make_stepper(tiny_model, world), TokensOut(tmp_path, rank=0, from_step=0)
    with caplog.at_level(logging.WARNING):
        for step in (0, 1):
            stepper.train_shard(shard, Phases(), on_tokens=partial(out.write, step))
    (said,) = [record.getMessage() for record in caplog.records if "tokens" in record.getMessage()]
    assert "step-000000.rank-0.npz" in said
    assert "No space left" in said
    assert "logging.tokens=false" in said
