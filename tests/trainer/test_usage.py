"""FLOPs by formula against FLOPs as torch counts them, and what the metrics make of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from trainer_samples import make_items, make_row, make_shards, save_tiny_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.trainer import Phases, Policy, Stepper, make_optimizer
from agentgym_rl.trainer.usage import FlopCount, peak_tflops
from tests.kit.cases import cases

CPU = torch.device("cpu")


def counted(model: torch.nn.Module, length: int, *, gradients: bool) -> float:
    """What torch does for one row whose every token is predicted."""
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(gradients):
        loss = model(torch.zeros(1, length, dtype=torch.int64), use_cache=False).logits.sum()
        if gradients:
            loss.backward()
    return float(counter.get_total_flops())


def all_trained(length: int):
    packed = pack_rows([make_row(np.random.default_rng(0), length)])
    every = torch.arange(length)
    return replace(packed, positions=every, targets=every, temperatures=torch.ones(length))


@cases("gradients", [False, True])
@cases("kind", ["qwen3", "qwen3, untied", "gpt2", "frozen"])
def test_flops_are_those_that_torch_counts(kind, gradients, tmp_path):
    if kind == "gpt2":
        shape = GPT2Config(vocab_size=40, n_positions=64, n_embd=32, n_layer=2, n_head=4)
        model = GPT2LMHeadModel(shape)
    else:
        folder = save_tiny_model(tmp_path, tied=kind == "qwen3")
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    model.set_attn_implementation("eager")
    if kind == "frozen":  # but for the first inputs: gradients go all the way
        model.requires_grad_(False)
        model.get_input_embeddings().requires_grad_(True)
    cost, length = FlopCount.of(model), 48
    # Eager attention computes both halves of each square; no gradient goes to the first inputs.
    halves = 2.0 * cost.attention * length**2 * (3 if gradients else 1)
    found = cost.of_pass(all_trained(length), gradients=gradients)
    assert found + halves == pytest.approx(counted(model, length, gradients=gradients), rel=0.06)


def stepper(model_dir, world, peak: float | None) -> Stepper:
    policy = Policy.load(model_dir, world)
    trainer = TrainerConfig(peak_tflops=peak, learning_rate=1e-3)
    optimizer = make_optimizer(policy.model, trainer)
    return Stepper(policy, optimizer, algo=AlgoConfig(), trainer=trainer, num_steps=2, seed=0)


def test_a_batch_says_how_much_of_the_device_it_used(tiny_model, world):
    (shard,) = make_shards(*make_items(), num_minibatches=1)
    metrics = stepper(tiny_model, world, peak=0.5).train_shard(shard, Phases())
    assert metrics["throughput/trainer_tflops"] > 0
    assert metrics["throughput/mfu"] == pytest.approx(metrics["throughput/trainer_tflops"] / 0.5)
    unknown = stepper(tiny_model, world, peak=None).train_shard(shard, Phases())
    assert "throughput/mfu" not in unknown
    assert "memory/gpu_peak_gb" not in unknown


@cases(
    "name, peak",
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA L40S", 362),
        ("NVIDIA GB200", 2500),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("some other thing", None),
    ],
)
def test_peaks_by_name(name, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_tflops(torch.device("cuda"), None) == peak
    assert peak_tflops(torch.device("cuda"), 7.0) == 7.0
    assert peak_tflops(CPU, None) is None
