"""What a rank holds leaves its device while engines have it, and comes back as it was."""

import itertools

import torch
from torch import nn

from agentgym_rl.config import Config
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.trainer import join_world, make_stepper
from agentgym_rl.trainer.sharding import Offload

# A CPU has no second device that keeps numbers: "meta" shows where everything is.
META, CPU = torch.device("meta"), torch.device("cpu")


def _trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), fused=False)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def _devices(model, optimizer) -> dict[str, set[str]]:
    state = [t for it in optimizer.state.values() for name, t in it.items() if name != "step"]
    return {
        "model": {t.device.type for t in itertools.chain(model.parameters(), model.buffers())},
        "state": {t.device.type for t in state},
        "gradients": {p.grad.device.type for p in model.parameters() if p.grad is not None},
    }


def test_nothing_stays_on_the_device():
    model, optimizer = _trained()
    offload = Offload([model], [optimizer], device=CPU, aside=META)
    assert _devices(model, optimizer)["gradients"] == {"cpu"}
    offload.away()
    offload.away()
    assert _devices(model, optimizer) == {"model": {"meta"}, "state": {"meta"}, "gradients": set()}


def test_what_was_aside_before_stays_there():
    """Adam's own count of steps is on the CPU, unless it is fused."""
    model, optimizer = _trained()
    for state in optimizer.state.values():
        state["step"] = state["step"].to(META)
    offload = Offload([model], [optimizer], device=CPU, aside=META)
    offload.away()
    kinds = {(it["step"].device.type, it["exp_avg"].device.type) for it in optimizer.state.values()}
    assert kinds == {("meta", "meta")}
    assert all(key != "step" for _, key in offload._were_there)


def test_a_model_that_is_kept_aside_is_not_brought_to_the_device():
    """As FSDP2 keeps it with trainer.cpu_offload."""
    kept, optimizer = _trained()
    kept.to(META)
    offload = Offload([kept], [], device=CPU, aside=META)
    offload.away()
    assert not offload._moved
    offload.back()
    assert _devices(kept, optimizer)["model"] == {"meta"}


def test_sharded_models_are_the_same_afterwards():
    """`Module.to` on what FSDP2 has sharded: parameters stay those that the optimizer knows."""
    with join_world() as world:
        stepper = make_stepper(Config(), world, BUNDLED)
        before = {name: t.clone() for name, t in stepper.policy.trained_state().items()}
        same = list(stepper.policy.model.parameters())
        stepper.policy.model.to(torch.float64).to(torch.float32)  # a real change, there and back
        assert all(a is b for a, b in zip(stepper.policy.model.parameters(), same, strict=True))
        after = stepper.policy.trained_state()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_on_a_cpu_nothing_moves():
    model, optimizer = _trained()
    offload = Offload([model], [optimizer], device=CPU)
    offload.away()
    assert _devices(model, optimizer)["gradients"] == {"cpu"}
    offload.back()
