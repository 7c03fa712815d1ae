from __future__ import annotations

import json
import resource
from concurrent.futures import Future
from pathlib import Path
from traceback import StackSummary
from typing import Any

import numpy as np
import pytest
import torch
from arl_lora.keys import LoraConfig
from rank_child import ALGO, TRAINER, make_stepper, moving_stepper, pass_by, train
from torch.distributed.checkpoint.api import CheckpointException
from trainer_samples import make_row, plain_logprobs, save_checkpoint, save_tiny_model
from transformers import AutoModelForCausalLM

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import Config, load_config
from agentgym_rl.core import TrainerError
from agentgym_rl.storage import Retention, newest_checkpoint, read_manifest
from agentgym_rl.storage.checkpoints import list_checkpoints
from agentgym_rl.trainer import export_model
from agentgym_rl.trainer.checkpoint import Checkpoints, config_hash, load_checkpoint
from agentgym_rl.trainer.step import Stepper
from agentgym_rl.weights import fingerprint


def save(folder, stepper, step, *, keep=2):
    return save_checkpoint(
        folder, stepper.policy, stepper.optimizer, step=step, config_hash="abc", keep=keep
    )


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tiny_model, world, tmp_path):
    straight = make_stepper(tiny_model, world)
    train(straight, 0)
    path = save(tmp_path, straight, 1)
    random = torch.rand(3)
    resumed = make_stepper(tiny_model, world)
    manifest = load_checkpoint(path, resumed.policy, resumed.optimizer)
    assert (manifest.step, manifest.version, manifest.config_hash) == (1, 1, "abc")
    assert torch.equal(torch.rand(3), random)
    for step in (1, 2):
        assert train(resumed, step) == train(straight, step)
    expected = straight.policy.full_state()
    assert all(torch.equal(t, expected[n]) for n, t in resumed.policy.full_state().items())


@pytest.mark.parametrize("name", ["SGD", "RMSprop"])
def test_a_resumed_run_of_an_own_optimizer_equals_an_uninterrupted_one(
    tiny_model, world, tmp_path, name
):
    options = {"momentum": 0.9, "weight_decay": 0.1}
    trainer = TRAINER.model_copy(
        update={"optimizer": f"torch.optim:{name}", "optimizer_options": options}
    )
    straight = make_stepper(tiny_model, world, trainer=trainer)
    train(straight, 0)
    path = save(tmp_path, straight, 1)
    resumed = make_stepper(tiny_model, world, trainer=trainer)
    load_checkpoint(path, resumed.policy, resumed.optimizer)
    assert train(resumed, 1) == train(straight, 1)
    expected = straight.policy.full_state()
    assert all(torch.equal(t, expected[n]) for n, t in resumed.policy.full_state().items())


@pytest.mark.slow
def test_a_resumed_run_of_muon_with_a_moving_reference_equals_an_uninterrupted_one(
    tiny_model, world, tmp_path
):
    straight, resumed = (moving_stepper(tiny_model, world) for _ in range(2))
    train(straight, 0)
    path = save_checkpoint(
        tmp_path, straight.policy, straight.optimizer,
        step=1, config_hash="", keep=1, terms=straight.model_terms,
    )  # fmt: skip
    resumed.restore(path)
    for step in (1, 2):
        assert train(resumed, step) == train(straight, step)
    assert fingerprint(resumed.policy.full_state()) == fingerprint(straight.policy.full_state())
    begun = moving_stepper(tiny_model, world)
    load_checkpoint(path, begun.policy)  # the weights alone, for an export
    assert begun.optimizer.state != resumed.optimizer.state
    found, kept = begun.policy.full_state(), moving_stepper(tiny_model, world)
    kept.restore(path)
    assert fingerprint(found) == fingerprint(kept.policy.full_state())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all weights", "an adapter", "a critic"])
def test_batches_without_signal_change_nothing_but_the_step(tiny_model, world, tmp_path, kind):
    """Whether a checkpoint was written after them, and whether a run resumed from it, included."""
    lora = LoraConfig(rank=4, alpha=8) if kind == "an adapter" else None
    algo = load_config(None, {"preset": "ppo-critic"}).algo if kind == "a critic" else ALGO

    def made():
        return make_stepper(tiny_model, world, algo, lora=lora)

    straight, saved, resumed = made(), made(), made()
    for masked in (False, True):
        pass_by(straight, 0, masked=masked)
        pass_by(saved, 0, masked=masked)
        version = saved.policy.trained_state()
        before = fingerprint(version)
        path = save_checkpoint(
            tmp_path, saved.policy, saved.optimizer,
            step=1, config_hash="", keep=1, terms=saved.model_terms,
        )  # fmt: skip
        assert fingerprint(version) == before  # what an engine that comes back would be given
    load_checkpoint(path, resumed.policy, resumed.optimizer, terms=resumed.model_terms)
    for step in (1, 2):
        expected = train(straight, step)
        assert train(saved, step) == expected
        assert train(resumed, step) == expected
    assert fingerprint(saved.policy.trained_state()) == fingerprint(straight.policy.trained_state())


def test_the_newest_are_kept_and_nothing_half_written(tiny_model, world, tmp_path):
    stepper = make_stepper(tiny_model, world)
    (tmp_path / ".step-3.tmp").mkdir()
    for step in (1, 2, 10, 3):
        save(tmp_path, stepper, step)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-3", "step-10"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-10", "step-3"]
    assert "torch" in json.loads((tmp_path / "step-3" / "manifest.json").read_text())["libraries"]


def test_incomplete_and_foreign_checkpoints_are_refused(tiny_model, world, tmp_path):
    stepper = make_stepper(tiny_model, world)
    with pytest.raises(TrainerError, match="no complete checkpoint"):
        load_checkpoint(tmp_path, stepper.policy, stepper.optimizer)
    path = save(tmp_path, stepper, 1)
    other = make_stepper(save_tiny_model(tmp_path / "untied", tied=False), world)
    with pytest.raises(TrainerError, match=r"cannot load checkpoint .*step-1"):
        load_checkpoint(path, other.policy, other.optimizer)
    (path / "manifest.json").write_text('{"step": 1}')
    with pytest.raises(TrainerError, match="no complete checkpoint"):
        load_checkpoint(path, stepper.policy, stepper.optimizer)


def checkpoints_of(stepper: Stepper, folder: Path, **more: Any) -> Checkpoints:
    """The checkpoints of a trainer, all of which are kept."""
    kept = Retention(keep=9)
    parts = stepper.policy, stepper.optimizer
    return Checkpoints(folder, *parts, config_hash="", retention=kept, **more)


def test_a_checkpoint_appears_once_its_batch_is_reported(tiny_model, world, tmp_path):
    stepper = make_stepper(tiny_model, world)
    checkpoints = checkpoints_of(stepper, tmp_path)
    checkpoints.begin(1, parameters="p", lineage="l")
    train(stepper, 0)  # what is written is what was there before
    assert list_checkpoints(tmp_path) == []
    done = checkpoints.reported({"reward/mean": 1.0})
    checkpoints.finish()
    assert done.result(60) == tmp_path / "step-1"
    manifest = read_manifest(tmp_path / "step-1")
    assert (manifest.parameters, manifest.metrics) == ("p", {"reward/mean": 1.0})
    begun = make_stepper(tiny_model, world)
    expected = begun.policy.full_state()
    load_checkpoint(tmp_path / "step-1", begun.policy, begun.optimizer)
    found = begun.policy.full_state()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    checkpoints.begin(2)
    checkpoints.close()  # it never appears: its batch was not reported
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-1"]


def test_a_checkpoint_damaged_inside_is_passed_over(tiny_model, world, tmp_path, caplog):
    stepper = make_stepper(tiny_model, world)
    older, newer = (save(tmp_path, stepper, step) for step in (1, 2))
    assert newest_checkpoint(tmp_path) == newer
    for file in sorted(newer.iterdir()):
        whole = file.read_bytes()
        changed = bytearray(whole)
        at = whole.find(b"2") if file.suffix == ".json" else len(whole) // 2
        changed[at] ^= 1  # JSON stays JSON: the step is another one
        file.write_bytes(bytes(changed))
        caplog.clear()
        assert newest_checkpoint(tmp_path) == older, file.name
        assert f"{file.name} is not what was written" in caplog.text
        file.write_bytes(whole)
    assert newest_checkpoint(tmp_path) == newer
    for path in (older, newer):
        (file,) = path.glob("*.distcp")
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(TrainerError, match=r"no checkpoint in .* is whole \(.*step-2.*step-1.*\)"):
        newest_checkpoint(tmp_path)


def test_a_checkpoint_of_an_earlier_version_has_its_sizes_alone(tiny_model, world, tmp_path):
    path = save(tmp_path, make_stepper(tiny_model, world), 1)
    head = json.loads((path / "manifest.json").read_text())
    del head["checksums"], head["checksum"]
    (path / "manifest.json").write_text(json.dumps(head))
    assert newest_checkpoint(tmp_path) == path
    (file,) = path.glob("*.distcp")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TrainerError, match="no checkpoint in"):
        newest_checkpoint(tmp_path)


def test_ranks_that_were_replaced_complete_no_checkpoint(tiny_model, world, tmp_path, caplog):
    def replaced():
        raise TrainerError("unknown token")

    stepper = make_stepper(tiny_model, world)
    checkpoints = checkpoints_of(stepper, tmp_path, before_complete=replaced)
    checkpoints.begin(1)
    assert checkpoints.reported({}).result(60) is None
    checkpoints.finish()
    checkpoints.close()
    assert list_checkpoints(tmp_path) == []
    assert "step-1 is left unfinished: unknown token" in caplog.text


FULL = "cannot write checkpoint .*step-1: rank 1: OSError: .* No space left on device"
LATE = r"step-1 was not written in 0.05 s \(trainer.finish_timeout_s\)"


@pytest.mark.parametrize("message", [FULL, LATE])
def test_why_files_were_not_written_in_the_background_is_said(
    tiny_model, world, tmp_path, monkeypatch, message
):
    written: Future[None] = Future()  # as of a GPU
    if message == FULL:
        full = OSError(28, "No space left on device")
        written.set_exception(CheckpointException("", {1: (full, StackSummary())}))
    monkeypatch.setattr(Checkpoints, "write", lambda self, part: written)
    stepper = make_stepper(tiny_model, world)
    checkpoints = checkpoints_of(stepper, tmp_path, timeout_s=0.05)
    checkpoints.begin(1)
    for end in (checkpoints.reported({}).result, lambda timeout: checkpoints.finish()):
        with pytest.raises(TrainerError, match=message):
            end(60)
    checkpoints.close()
    assert list_checkpoints(tmp_path) == []


def test_a_checkpoint_cut_short_is_no_checkpoint(tiny_model, world, tmp_path):
    stepper = make_stepper(tiny_model, world)
    for step in (1, 2):
        path = save(tmp_path, stepper, step)
    assert newest_checkpoint(tmp_path) == path
    part = next(path.glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-1])
    assert newest_checkpoint(tmp_path) == tmp_path / "step-1"
    with pytest.raises(TrainerError, match=r"distcp has \d+ bytes, its manifest says"):
        load_checkpoint(path, stepper.policy, stepper.optimizer)


def test_a_fingerprint_tells_every_bit_and_nothing_else():
    plain = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    expected = fingerprint(plain)
    assert fingerprint(dict(reversed(plain.items()))) == expected
    assert fingerprint({**plain, "a": torch.arange(6.0).reshape(3, 2).t()}) != expected
    for change in (torch.nextafter(plain["a"], torch.tensor(9.0)), plain["a"].flip(1)):
        assert fingerprint({**plain, "a": change}) != expected
    assert fingerprint({**plain, "a": torch.tensor([-0.0])}) != fingerprint(
        {**plain, "a": torch.tensor([0.0])}
    )


def test_a_checkpoint_that_cannot_be_written_says_so(tiny_model, world, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainerError, match="cannot write checkpoint"):
        save(tmp_path / "file", make_stepper(tiny_model, world), 1)


@pytest.mark.parametrize("size", [1, 5_000])
def test_a_full_disk_is_the_cause_that_a_checkpoint_names(tiny_model, world, tmp_path, size):
    """And not what torch says when it then closes the file, which no user could act on."""
    stepper = make_stepper(tiny_model, world)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(TrainerError, match=r"rank 0: OSError: .*File too large"):
            save(tmp_path, stepper, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_configuration_has_a_hash():
    assert config_hash(Config()) == config_hash(Config())
    assert config_hash(Config()) != config_hash(Config(steps=41))


def test_an_export_loads_and_is_the_policy(tiny_model, world, tmp_path):
    stepper = make_stepper(tiny_model, world)
    train(stepper, 0)
    source = tmp_path / "source"
    source.mkdir()
    for name in ("config.json", "generation_config.json"):
        (source / name).write_bytes((tiny_model / name).read_bytes())
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    (source / "tokenizer.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"old")
    for _ in range(2):  # the second replaces the first
        path = export_model(tmp_path / "export", stepper.policy.full_state(), model_dir=source)
    loaded = AutoModelForCausalLM.from_pretrained(path)
    assert loaded.dtype == torch.float64
    row = make_row(np.random.default_rng(0), 20)
    with torch.no_grad():
        torch.testing.assert_close(
            plain_logprobs(loaded, row),
            stepper.policy.logprobs(pack_rows([row])),
            rtol=0,
            atol=1e-6,
        )
    assert sorted(p.name for p in path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export", "source"]


def test_an_export_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(TrainerError, match="cannot export"):
        export_model(tmp_path / "export", {}, model_dir=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
