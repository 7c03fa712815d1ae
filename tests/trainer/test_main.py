"""A trainer's whole life against a real controller and engine server, in this process."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trainer_samples import make_items, make_row, make_shards, plain_logprobs, with_behavior
from trainer_servers import TOKEN, FakeRun, controller
from transformers import AutoModelForCausalLM

from agentgym_rl.config import Config, load_config
from agentgym_rl.core import BatchRow, ConfigError, TrainerError, base_checksum
from agentgym_rl.storage import read_manifest
from agentgym_rl.trainer import Stepper
from agentgym_rl.trainer.main import run
from agentgym_rl.weights import fingerprint, is_adapter
from agentgym_rl.weights.adapter import merged
from tests.kit.versions import part_of, read_version

BASE = {
    "steps": 3,
    "trainer.device": "cpu",
    "trainer.num_minibatches": 2,
    "trainer.checkpoint_every": 2,
    "trainer.mismatch_stop": 1e6,  # behavior log-probs of the samples are made up
    "weights.keep_versions": "all",
}


def start(server: FakeRun, model: Path, tmp_path: Path, config: Config, **more: bool) -> None:
    (tmp_path / "shm").mkdir()
    run(
        config,
        model_dir=model,
        run_dir=tmp_path,
        weights_dir=tmp_path / "shm",
        controller_url=server.url,
        **more,
    )


@pytest.fixture(autouse=True)
def token(monkeypatch) -> None:
    monkeypatch.setenv("ARL_TOKEN", TOKEN)


def shards(num: int) -> list:
    return [make_shards(*make_items(step=step), step=step)[0] for step in range(num)]


@pytest.mark.slow
def test_a_run_from_the_first_batch_to_the_export(tiny_model, tmp_path):
    config = load_config(overrides=BASE)
    with controller(shards(3)) as server:
        start(server, tiny_model, tmp_path, config)
    assert server.ready == [0]
    assert [(r.step, r.version) for r in server.reports] == [(0, 1), (1, 2), (2, 3)]
    assert [(c["step"], Path(c["folder"]).name) for c in server.checkpoints] == [
        (2, "step-2"),
        (3, "step-3"),
    ]
    manifest = read_manifest(Path(server.checkpoints[1]["folder"]))
    assert manifest.version == 3
    assert manifest.metrics == {"reward/mean": 0.5, "overlap": None}
    assert manifest.parameters == server.reports[2].parameters
    assert server.label == "0.3"
    ends = [(end["version"], end["served"], end["failed"]) for end in server.ended]
    assert ends == [(version, ["e"], {}) for version in (1, 2, 3)]
    assert [Path(p).name for p in server.updates] == [f"v{n}" for n in (1, 2, 3)]
    kept = sorted(p.name for p in (tmp_path / "shm").iterdir())
    assert kept == ["v2", "v3"]
    names = sorted(p.name for p in (tmp_path / "weights").iterdir())
    assert names == [f"v-{n}" for n in range(4)]
    final = read_version(tmp_path / "weights" / "v-3")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in final.items())


@pytest.mark.slow
def test_a_run_of_an_adapter_publishes_it_alone(tiny_model, tmp_path):
    config = load_config(overrides={**BASE, "lora.rank": 4})
    with controller(shards(3)) as server:
        start(server, tiny_model, tmp_path, config)
    versions = [read_version(tmp_path / "weights" / f"v-{n}") for n in range(4)]
    assert all(is_adapter(version) for version in versions)
    published = [part_of(tmp_path / "shm" / f"v{n}").read_bytes() for n in (2, 3)]
    assert published[0] != published[1]
    assert server.reports[2].parameters == fingerprint(versions[3])
    manifest = read_manifest(Path(server.checkpoints[1]["folder"]))
    assert manifest.base == f"{base_checksum(tiny_model):08x}"
    whole = merged(versions[3], tiny_model)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.items())
    adapter = load_file(tmp_path / "export" / "adapter" / "adapter_model.safetensors")
    assert all(torch.equal(versions[3][name], tensor) for name, tensor in adapter.items())
    config_file = tmp_path / "export" / "adapter" / "adapter_config.json"
    assert json.loads(config_file.read_text())["base_model_name_or_path"] == str(tiny_model)


def test_a_report_has_metrics_and_intervals(tiny_model, tmp_path):
    before = time.monotonic()
    with controller(shards(1)) as server:
        start(server, tiny_model, tmp_path, load_config(overrides={**BASE, "steps": 1}))
    (report,) = server.reports
    for name in ("loss", "grad_norm", "lr", "policy/clip_fraction", "time/weight_sync"):
        assert name in report.metrics
    (published,) = server.published
    assert 0 < published.pause_s + published.stage_s < published.seconds * 1.01
    phases = [name for name, _, _ in report.intervals]
    assert phases[:2] == ["rollout_wait", "proximal"]
    assert phases[-1] == "weight_sync"
    assert all(before < a <= b < time.monotonic() for _, a, b in report.intervals)


@torch.no_grad()
def test_a_run_says_that_engine_and_trainer_disagree_or_ends(tiny_model, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    rows = [make_row(np.random.default_rng(n), n) for n in (9, 17, 45, 30)]
    right = [plain_logprobs(model, row).numpy() for row in rows]
    config = load_config(overrides={"steps": 1, "trainer.device": "cpu"})

    def train(off: float, server: FakeRun, folder: Path) -> None:
        found = [with_behavior(row, b + off) for row, b in zip(rows, right, strict=True)]
        items = [BatchRow(row, i) for i, row in enumerate(found)]
        server.shards = make_shards(items, [0.0, 1.0] * 2, ["a", "a", "b", "b"])
        folder.mkdir()
        with torch.enable_grad():
            start(server, tiny_model, folder, config)

    with controller() as server:
        train(0.02, server, tmp_path / "warned")
    assert ["agrees with the trainer" in text for text in server.warned] == [True]
    assert server.failed == []
    (report,) = server.reports
    assert report.metrics["mismatch/mean_abs/staleness_0"] == pytest.approx(0.02, rel=1e-3)
    with controller() as server, pytest.raises(TrainerError) as error:
        train(0.5, server, tmp_path / "ended")
    assert server.failed == [str(error.value)]
    assert server.failed[0].startswith("batch 0 cannot be trained: ")
    assert server.ended == [], "nothing was published"


def test_learning_rate_zero_publishes_the_very_same_bits(tiny_model, tmp_path):
    config = load_config(overrides={**BASE, "trainer.learning_rate": 0.0})
    with controller(shards(3)) as server:
        start(server, tiny_model, tmp_path, config)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    state = dict(model.named_parameters())
    for version in (0, 1, 2, 3):
        found = read_version(tmp_path / "weights" / f"v-{version}")
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) for name in state)
    kept = [part_of(tmp_path / "weights" / f"v-{version}") for version in (0, 1, 3)]
    assert kept[0].samefile(kept[1])
    assert kept[0].samefile(kept[2])
    assert [Path(p).name for p in server.updates] == ["v1"]  # once
    assert server.label == "0.3"
    assert [r.version for r in server.reports] == [1, 2, 3]
    assert len({r.parameters for r in server.reports}) == 1
    assert [published.pause_s for published in server.published[1:]] == [0, 0]
    two = [part_of(tmp_path / "shm" / f"v{version}") for version in (2, 3)]
    assert two[0].samefile(two[1])


def test_the_end_of_the_run_is_no_error(tiny_model, tmp_path):
    with controller(shards(1), ends=False) as server:
        start(server, tiny_model, tmp_path, load_config(overrides=BASE))
    assert len(server.reports) == 1
    assert not (tmp_path / "export").exists()


def test_sigterm_ends_it_cleanly(tiny_model, tmp_path):
    def terminate() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()

    before = signal.getsignal(signal.SIGTERM)
    with controller(on_ready=terminate) as server, pytest.raises(SystemExit) as end:
        start(server, tiny_model, tmp_path, load_config(overrides=BASE))
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("splits", [False, True])
def test_a_batch_that_does_not_fit_fails_at_once_if_it_cannot_be_split_further(
    tiny_model, tmp_path, monkeypatch, splits
):
    def train_shard(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Stepper, "train_shard", train_shard)
    said = r"batch 0 does not fit in the memory of trainer-0, in micro-batches of up to {} tokens"
    most = "2,048" if splits else "4,096"
    with controller(shards(1)) as server, pytest.raises(TrainerError, match=said.format(most)) as e:
        start(server, tiny_model, tmp_path, load_config(overrides=BASE), splits=splits)
    keys = ("trainer.max_tokens_per_microbatch", "trainer.cpu_offload=true", "lora.rank")
    assert [key in str(e.value) for key in keys] == [splits] * 3
    assert server.failed == [str(e.value)] * splits  # the others are started again


def test_a_dead_controller_stops_the_trainer(tiny_model, tmp_path):
    with controller() as server:
        pass
    with pytest.raises(TrainerError, match="ConnectionRefused"):
        start(server, tiny_model, tmp_path, load_config(overrides=BASE))


@pytest.mark.parametrize("steps", [(0, 0), (0, 2), (1,)], ids=str)
def test_a_rank_trains_only_the_batch_that_follows_its_weights(tiny_model, tmp_path, steps):
    given = [make_shards(*make_items(step=step), step=step)[0] for step in steps]
    with (
        controller(given) as server,
        pytest.raises(TrainerError, match=f"after {steps[-1]} batches .* had {len(steps) - 1}:"),
    ):
        start(server, tiny_model, tmp_path, load_config(overrides=BASE))
    assert [report.step for report in server.reports] == [*range(len(steps) - 1)]


def test_versions_are_left_as_configured(tiny_model, tmp_path):
    config = load_config(overrides={**BASE, "weights.keep_versions": 1})
    with controller(shards(3)) as server:
        start(server, tiny_model, tmp_path, config)
    assert [p.name for p in (tmp_path / "shm").iterdir()] == ["v3"]
    assert not (tmp_path / "weights").exists()


def test_a_publication_that_failed_is_begun_again(tiny_model, tmp_path):
    with controller(shards(1)) as server:
        server.failures = 2
        start(server, tiny_model, tmp_path, load_config(overrides={**BASE, "steps": 1}))
    assert server.label == "0.1"
    assert [end["served"] for end in server.ended] == [[], [], ["e"]]
    assert "/finish_weight_update: HTTP 500: out of memory" in server.ended[0]["failed"]["e"]
    assert len(server.reports) == 1


def test_an_engine_that_fails_beside_another_is_only_reported(tiny_model, tmp_path):
    with controller() as gone:
        pass
    with controller(shards(1)) as server:
        server.engines["gone"] = gone.engines["e"]
        start(server, tiny_model, tmp_path, load_config(overrides={**BASE, "steps": 1}))
    (end,) = server.ended
    assert end["served"] == ["e"]
    assert f"gone ({gone.engines['e']}): GET /model_info" in end["failed"]["gone"]


def test_a_transport_of_vllms_own_needs_vllm(tiny_model, tmp_path):
    overrides = {"engine.type": "vllm", "weights.transport": "nccl"}
    with controller() as server, pytest.raises(ConfigError, match=r"'nccl' is .* no vLLM"):
        start(server, tiny_model, tmp_path, load_config(overrides=overrides))
