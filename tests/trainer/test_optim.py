from __future__ import annotations

import pytest
import torch
from arl_optimizers.keys import check_torchao
from arl_optimizers.muon import Muon, hidden_matrices, orthogonal
from arl_trial.own_optimizer import check_optimizer

from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.core import ConfigError, TrainerError, extensions
from agentgym_rl.trainer import learning_rate, make_optimizer, set_learning_rate, take_step
from tests.kit.cases import cases

SCHEDULES = {
    "constant": [1, 1, 1, 1, 1],
    "linear": [1, 0.775, 0.55, 0.325, 0.1],
    "cosine": [1, 0.8682, 0.55, 0.2318, 0.1],
}


@cases("schedule", SCHEDULES)
def test_schedules_end_at_the_floor(schedule):
    config = TrainerConfig(learning_rate=1.0, schedule=schedule, learning_rate_floor=0.1)
    found = [learning_rate(config, step, num_steps=5) for step in range(5)]
    assert found == pytest.approx(SCHEDULES[schedule], abs=1e-4)


@cases("schedule", SCHEDULES)
def test_warm_up_is_linear_and_comes_first(schedule):
    config = TrainerConfig(
        learning_rate=1.0, schedule=schedule, learning_rate_floor=0.1, warmup_steps=3
    )
    found = [learning_rate(config, step, num_steps=8) for step in range(8)]
    assert found == pytest.approx([0.25, 0.5, 0.75, *SCHEDULES[schedule]], abs=1e-4)


def test_odd_lengths_stay_in_range():
    for num_steps, warmup in ((1, 0), (1, 5), (2, 2), (3, 1)):
        config = TrainerConfig(learning_rate=1.0, schedule="linear", warmup_steps=warmup)
        for step in range(num_steps + 2):
            assert 0 < learning_rate(config, step, num_steps=num_steps) <= 1


def test_weight_decay_spares_vectors():
    matrix, vector = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    optimizer = make_optimizer(
        torch.nn.ParameterList([matrix, vector]), TrainerConfig(weight_decay=0.5)
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    assert optimizer.defaults["fused"]


def test_a_step_clips_and_returns_the_norm_before_it():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.tensor([3.0, 4.0])
    assert take_step(optimizer, 1.0) == pytest.approx(5.0)
    assert parameter.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)
    assert parameter.grad is None
    parameter.grad = torch.tensor([float("inf"), 0.0])
    with pytest.raises(TrainerError, match="inf"):
        take_step(optimizer, 1.0)
    assert parameter.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)


# ---------------------------------------------------------------- Muon
class Net(torch.nn.Module):
    """An embedding, two layers with a matrix and a vector each, and a stack of matrices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(5, 8)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 4), torch.nn.Linear(4, 8)])
        self.stack = torch.nn.Parameter(torch.randn(2, 3, 3))

    def loss(self) -> torch.Tensor:
        hidden = self.embed.weight
        for layer in self.layers:
            hidden = layer(hidden).tanh()
        return hidden.square().sum() + self.stack.square().sum()


@cases("shape", [(8, 8), (4, 16), (16, 4), (1, 5)])
def test_an_orthogonal_matrix_keeps_singular_vectors_and_has_values_of_about_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = orthogonal(matrix)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    values = u.T @ found @ v.T
    assert torch.linalg.svdvals(found).min() > 0.3
    assert torch.linalg.svdvals(found).max() < 1.3
    torch.testing.assert_close(values, torch.diag(values.diag()), atol=1e-10, rtol=0)


def test_muon_steps_are_those_of_torchs_own_as_far_as_bfloat16_goes():
    """torch's computes in bfloat16, and does not know sharded matrices."""
    ours, theirs = Net(), Net()
    config = TrainerConfig(optimizer="muon", weight_decay=0.1)
    optimizer = make_optimizer(ours, config)
    set_learning_rate(optimizer, 0.02)
    reference = torch.optim.Muon(
        hidden_matrices(theirs), lr=0.02, weight_decay=0.1, momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    for _ in range(3):
        for mine, its in zip(hidden_matrices(ours), hidden_matrices(theirs), strict=True):
            mine.grad = its.grad = torch.randn(mine.shape)
        optimizer.step()
        reference.step()
    for mine, its in zip(hidden_matrices(ours), hidden_matrices(theirs), strict=True):
        torch.testing.assert_close(mine, its, atol=0.002, rtol=0)


def test_muon_is_for_matrices_between_embedding_and_output_and_adamw_for_the_rest():
    net, same = Net(), Net()
    assert [tuple(p.shape) for p in hidden_matrices(net)] == [(4, 8), (8, 4)]
    muon = make_optimizer(net, TrainerConfig(optimizer="muon"))
    adamw = make_optimizer(same, TrainerConfig())
    assert (type(muon), type(adamw)) == (Muon, torch.optim.AdamW)
    for optimizer, it in ((muon, net), (adamw, same)):
        set_learning_rate(optimizer, 0.1)
        (it.embed.weight.sum() + it.stack.square().sum()).backward()
        take_step(optimizer, 1.0)
    torch.testing.assert_close(net.state_dict(), same.state_dict(), atol=0, rtol=0)
    assert [len(state) for state in muon.state.values()].count(2) == 2  # and the step


IGNORED = {
    "momentum": ({"momentum": 0.9}, "momentum 0.9 does nothing unless optimizer is 'muon'"),
    "offload": ({"optimizer": "muon", "cpu_offload": True}, "cpu_offload takes them on the CPU"),
}


@cases("settings, message", IGNORED.values())
def test_what_an_optimizer_would_ignore_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config({"trainer": settings})


@cases("name", ["adamw", "muon", "adamw8bit"])
def test_an_optimizer_that_would_lose_small_steps_is_refused(name):
    """One of 1e-4 at 1: bfloat16 has no number between 1 and 1.0078. Frozen ones do not move."""
    net = Net()
    net.layers[0].bfloat16().requires_grad_(False)
    if name != "adamw8bit":
        make_optimizer(net, TrainerConfig(optimizer=name))
    net.layers[0].requires_grad_(True)
    why = rf"'{name}' would lose .* 2 parameters .* layers\.0\.weight; .* \"adamw_bf16\""
    with pytest.raises(ConfigError, match=why):
        make_optimizer(net, TrainerConfig(optimizer=name))
    make_optimizer(net, TrainerConfig(optimizer="adamw_bf16"))


def test_eight_bits_without_torchao_are_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs torchao, which is not installed: pip install"):
        make_optimizer(Net(), TrainerConfig(optimizer="adamw8bit"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torchao's own
def test_eight_bits_are_close_to_all_of_them():
    pytest.importorskip("torchao")
    nets = []
    for name in ("adamw", "adamw8bit"):
        net = torch.nn.Linear(64, 128)
        torch.nn.init.constant_(net.weight, 0.1)
        torch.nn.init.zeros_(net.bias)
        optimizer = make_optimizer(net, TrainerConfig(optimizer=name))
        assert {float(state["step"]) for state in optimizer.state.values()} == {0.0}
        set_learning_rate(optimizer, 0.01)
        for step in range(3):
            (net(torch.arange(64.0) / 64 + step).square().sum()).backward()
            take_step(optimizer, 1.0)
        nets.append(net.weight.detach())
    assert nets[0].sub(0.1).abs().mean() > 0.01
    torch.testing.assert_close(nets[0], nets[1], atol=0.005, rtol=0)


class Idle(torch.optim.SGD):
    def step(self, closure=None):
        return None


def halved(groups, *, lr):
    return torch.optim.SGD(groups[:1], lr=lr)


def given_back(groups, *, lr):
    return groups


HERE = "tests.trainer.test_optim"


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "AdamW", "Adafactor"])
def test_any_optimizer_of_torch_can_be_named(name):
    config = TrainerConfig(optimizer=f"torch.optim:{name}", weight_decay=0.5)
    check_optimizer(config)
    net = Net()
    optimizer = make_optimizer(net, config)
    assert type(optimizer) is getattr(torch.optim, name)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.5, 0.0}
    steps = [state["step"] for state in optimizer.state.values() if "step" in state]
    assert not any(map(float, steps))


def test_momentum_of_an_own_optimizer_begins_at_zero():
    options = {"momentum": 0.9}
    config = TrainerConfig(optimizer="torch.optim:SGD", optimizer_options=options, weight_decay=0.5)
    states = make_optimizer(Net(), config).state.values()
    assert states
    assert not any(state["momentum_buffer"].any() for state in states)


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        (f"{HERE}:Idle", {}, "changed no weights"),
        (f"{HERE}:halved", {}, "parameters of the"),
        ("torch.optim:SGD", {"beta": 1}, "unexpected keyword argument 'beta'"),
        ("torch.optim:SGD", {"momentum": -1}, "raised ValueError"),
        ("torch.nn:Linear", {}, "takes"),
        ("torch.optim:Nope", {}, "cannot import"),
        (f"{HERE}:given_back", {}, "returned a list"),
    ],
)
def test_an_optimizer_that_does_not_keep_its_contract_is_refused(path, options, said):
    with pytest.raises(ConfigError, match=said) as caught:
        check_optimizer(TrainerConfig(optimizer=path, optimizer_options=options))
    assert path in str(caught.value)


def test_without_the_package_its_optimizers_are_refused_by_its_name(monkeypatch):
    find = extensions.find_spec
    hidden = lambda name: None if name == "arl_optimizers" else find(name)  # noqa: E731
    monkeypatch.setattr(extensions, "find_spec", hidden)
    extensions.forget_entry_points()
    try:
        for name in ("muon", "adamw8bit", "adamw_bf16"):
            with pytest.raises(ConfigError, match=f"'{name}' is an optimizer of the extension arl"):
                TrainerConfig(optimizer=name)
    finally:
        extensions.forget_entry_points()


@pytest.mark.parametrize("trains", [True, False])
def test_eight_bits_without_torchao_are_refused_before_a_run(monkeypatch, trains):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = load_config(None, {"trainer.optimizer": "adamw8bit"})
    assert len([*check_torchao(config, trains)]) == trains
    assert [*check_torchao(load_config(None, {"trainer.optimizer": "muon"}), True)] == []


def test_a_name_that_is_no_optimizer_is_refused():
    with pytest.raises(ValueError, match="did you mean adamw"):
        TrainerConfig(optimizer="adam")
    with pytest.raises(ValueError, match=r"betas .* does nothing unless optimizer is"):
        TrainerConfig(optimizer="torch.optim:SGD", betas=(0.5, 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_of_a_large_gradient_is_exact(dtype):
    """On a CPU, torch adds up so many squares of float32 one after the other."""
    parameter = torch.nn.Parameter(torch.zeros(1 << 25, dtype=dtype))
    parameter.grad = torch.full_like(parameter, 0.1)
    exact = parameter.grad[0].item() * 2**12.5
    assert abs(torch.linalg.vector_norm(parameter.grad.float()).item() / exact - 1) > 1e-4
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    assert take_step(optimizer, exact / 4) == pytest.approx(exact, rel=1e-7)
    assert parameter[0].item() == pytest.approx(
        -0.1 / 4, rel=1e-6 if dtype == torch.float32 else 0.01
    )
