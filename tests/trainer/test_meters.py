"""The metrics of layers and of devices, of `arl_meters`."""

import pytest
import torch
from arl_meters.devices import peak_tflops
from arl_meters.layers import LayerNorms
from torch import nn
from trainer_samples import make_items, make_shards

from agentgym_rl.algo import Tally
from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.trainer import Phases, Policy, Stepper, make_optimizer, take_step
from tests.kit.cases import cases


def test_norms_by_layer_are_those_of_gradients_and_of_updates(world):
    layers = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8))
    net = nn.Sequential(layers, nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    norms, tally = LayerNorms(net, world, num_replicas=1), Tally()
    net(torch.ones(3, 8)).square().sum().backward()
    gradients = [p.grad for p in layers[1].parameters() if p.grad is not None]
    expected = torch.cat([grad.flatten() for grad in gradients]).norm().item()
    with norms.step(tally):
        total = take_step(optimizer, 1e9)
    found = norms.merged(tally.values())
    assert found["layer/1/grad_norm"] == pytest.approx(expected)
    assert found["layer/1/update_norm"] == pytest.approx(0.5 * expected)
    parts = [found[f"layer/{layer}/grad_norm"] ** 2 for layer in ("0", "1", "rest")]
    assert sum(parts) ** 0.5 == pytest.approx(total)


def test_norms_of_bfloat16_are_not_rounded_to_it(world):
    net = nn.Linear(1000, 3, bias=False).bfloat16()
    net.weight.grad = torch.linspace(0.01, 1, 3000).bfloat16().view(3, 1000)
    norms, tally = LayerNorms(net, world, num_replicas=1), Tally()
    expected = net.weight.grad.double().norm().item()
    with norms.step(tally):
        pass
    assert norms.merged(tally.values())["layer/rest/grad_norm"] == pytest.approx(expected, rel=1e-7)


def stepper(model_dir, world, peak: float | None) -> Stepper:
    policy = Policy.load(model_dir, world)
    trainer = TrainerConfig.model_validate({"peak_tflops": peak, "learning_rate": 1e-3})
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
    assert peak_tflops(torch.device("cpu"), None) is None
