"""LoRA on the experts of mixtures: what the trainer computes is what the merged weights compute,
and what peft computes with the exported adapter."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arl_lora.keys import LoraConfig
from experts_child import Case, make_stepper, train, wide
from trainer_samples import make_row, plain_logprobs, save_checkpoint
from transformers import AutoModelForCausalLM

from agentgym_rl.algo import pack_rows
from agentgym_rl.core import ConfigError, TrainerError, tensor_heads
from agentgym_rl.trainer import Policy, World, export_policy
from agentgym_rl.trainer.checkpoint import load_checkpoint
from agentgym_rl.trainer.policy import PolicyBase
from agentgym_rl.weights import fingerprint, write_version
from agentgym_rl.weights.adapter import merged
from tests.kit.cases import cases
from tests.kit.moe import NO_REPLAY, build, save_moe
from tests.kit.versions import read_version

MODELS = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "qwen2_moe")
LORA = LoraConfig(rank=3, alpha=8)
ROW = make_row(np.random.default_rng(3), 20, temperature=1.0)
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about a factor of GPT-OSS


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mixtures")
    for name in MODELS:
        save_moe(folder / name, name)
    return folder


def randomized(policy: Policy) -> Policy:
    """The policy with an adapter that changes its log-probs."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(std=0.05)
    return policy


def adapted(folder: Path, world: World, lora: LoraConfig = LORA, **how: Any) -> Policy:
    return randomized(Policy.load(folder, world, adapter=lora, **how))


def leaves(policy: Policy) -> set[str]:
    """The names of the trained parameters, without their blocks."""
    trained = (n for n, p in policy.model.named_parameters() if p.requires_grad)
    return {name.split(".", 3)[3] for name in trained}


EXPERTS = {
    f"mlp.experts.lora_{kind}_{leaf}" for kind in "AB" for leaf in ("gate_up_proj", "down_proj")
}


@pytest.mark.slow
@cases("model", MODELS)
def test_merged_they_say_what_the_trainer_says(models, world, tmp_path, model):
    folder = models / model
    policy = adapted(folder, world)
    assert leaves(policy) > EXPERTS
    packed = pack_rows([ROW])
    with torch.no_grad():
        found = policy.logprobs(packed)
        plain = Policy.load(folder, world)
        assert (found - plain.logprobs(packed)).abs().max() > 1e-2
        assert torch.equal(PolicyBase(policy).logprobs(packed), plain.logprobs(packed))
        assert torch.equal(policy.logprobs(packed), found)
        path = write_version(tmp_path, 1, policy.trained_state())
        weights = merged(read_version(path), folder)
        assert weights.keys() == tensor_heads(folder).keys()
        whole = export_policy(tmp_path / "x", policy, model_dir=folder)
        again = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
        torch.testing.assert_close(plain_logprobs(again, ROW), found, rtol=0, atol=2e-5)


SHARED = ("gate_proj", "up_proj", "mlp.down_proj", "shared_experts.down_proj")
PEFT = {
    **dict.fromkeys(MODELS, LORA),
    "deepseek_v3": LORA.model_copy(update={"exclude_modules": SHARED}),
}
"""The adapters that peft loads: it takes shared experts of DeepSeek for those of earlier
releases."""


@pytest.mark.slow
@cases("model", MODELS)
def test_peft_loads_the_export(models, world, tmp_path, model):
    from peft import PeftModel

    folder = models / model
    policy = adapted(folder, world, PEFT[model])
    out = export_policy(tmp_path / "x", policy, model_dir=folder)
    with torch.no_grad():
        found = policy.logprobs(pack_rows([ROW]))
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        theirs = PeftModel.from_pretrained(base, out / "adapter")
        torch.testing.assert_close(plain_logprobs(theirs, ROW), found, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_they_train_alone_and_from_checkpoints(models, world, tmp_path):
    case = Case("qwen3_moe", balances=False, lora=LORA)
    with wide():
        stepper = make_stepper(case, models, world)
        before = frozen(stepper.policy)
        metrics = [train(stepper, case, step) for step in range(2)]
        after = frozen(stepper.policy)
        assert len(after) > 10
        assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
        assert metrics[1]["grad_norm"] > 0
        how: dict[str, Any] = {"step": 2, "config_hash": "h", "keep": 1}
        path = save_checkpoint(tmp_path / "c", stepper.policy, stepper.optimizer, **how)
        resumed = make_stepper(case, models, world)
        load_checkpoint(path, resumed.policy, resumed.optimizer)
        states = [it.policy.trained_state() for it in (stepper, resumed)]
        assert fingerprint(states[0]) == fingerprint(states[1])
        assert train(resumed, case, 2) == train(stepper, case, 2)
        moved = [t for name, t in states[0].items() if "experts" in name and ".lora_B." in name]
        assert len(moved) == 3 * 8 * 3
        assert all(bool(tensor.any()) for tensor in moved)


def frozen(policy: Policy) -> dict[str, torch.Tensor]:
    parameters = policy.model.named_parameters()
    return {name: p.detach().clone() for name, p in parameters if not p.requires_grad}


@pytest.mark.slow
def test_gradients_are_those_of_the_merged_weights(models, world):
    """The gradient of B is that of the merged matrix, times A and the scale."""
    policy = adapted(models / "qwen3_moe", world, LORA.model_copy(update={"use_rslora": True}))
    whole = build(AutoModelForCausalLM.from_pretrained(models / "qwen3_moe").config)
    names = Policy.load(models / "qwen3_moe", world).names
    whole.load_state_dict(names.back(dict(policy.full_state()), source="it"))
    policy.logprobs(pack_rows([ROW])).sum().backward()
    plain_logprobs(whole, ROW).sum().backward()
    parameters = dict(policy.model.named_parameters())
    place, scale = "model.layers.1.mlp.experts", 8 / 3**0.5
    for leaf in ("gate_up_proj", "down_proj"):
        a, b = (parameters[f"{place}.lora_{kind}_{leaf}"] for kind in "AB")
        full = whole.get_parameter(f"{place}.{leaf}").grad
        torch.testing.assert_close(b.grad, scale * full @ a.mT, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(a.grad, scale * b.mT @ full, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_in_bfloat16_they_are_kept_in_float32(models, world):
    policy = adapted(models / "qwen3_moe", world, compute_dtype="bfloat16")
    policy.logprobs(pack_rows([ROW])).sum().backward()
    grads = [p.grad for p in policy.model.parameters() if p.requires_grad]
    assert {grad.dtype for grad in grads} == {torch.float32}


@pytest.mark.slow
def test_experts_are_chosen_by_name(models, world, caplog):
    def chosen(model: str = "qwen3_moe", **keys: Any) -> set[str]:
        return leaves(Policy.load(models / model, world, adapter=LoraConfig(rank=2, **keys)))

    attention = {
        f"self_attn.{it}_proj.lora_{kind}.default.weight" for it in "qkvo" for kind in "AB"
    }
    assert chosen() == attention | EXPERTS
    assert chosen(exclude_modules=("experts",)) == attention
    assert chosen(target_modules=("experts.gate_up_proj", "down_proj")) == EXPERTS
    only = {f"mlp.experts.lora_{kind}_down_proj" for kind in "AB"}
    assert chosen(target_modules=("experts.down_proj",)) == only
    found = chosen("deepseek_v3", target_modules=("down_proj",))
    shared = {
        f"mlp.{it}down_proj.lora_{kind}.default.weight"
        for it in ("", "shared_experts.")
        for kind in "AB"
    }
    assert found == shared | only
    with pytest.raises(TrainerError, match=r"gate_proj not found.* are experts\.down_proj, exp"):
        chosen(target_modules=("q_proj", "gate_proj"))
    with pytest.raises(TrainerError, match="leaves no layer of Qwen3MoeForCausalLM"):
        chosen(exclude_modules=("self_attn", "experts", "q_proj", "k_proj", "v_proj", "o_proj"))


@pytest.mark.slow
def test_experts_of_another_kind_are_left_out_with_a_warning_and_refused_by_name(
    world, tmp_path, caplog
):
    folder = tmp_path / "llama4"
    build(NO_REPLAY["no indices"][0]).save_pretrained(folder)
    with caplog.at_level(logging.WARNING):
        policy = Policy.load(folder, world, adapter=LORA)
    assert "no adapter of the experts of Llama4ForCausalLM: Llama4TextExperts" in caplog.text
    assert not any("experts." in name for name in leaves(policy))
    lora = LoraConfig(rank=2, target_modules=("experts.gate_up_proj",))
    with pytest.raises(TrainerError, match="compute in a way of their own"):
        Policy.load(folder, world, adapter=lora)


@cases("model", MODELS)
def test_the_plan_counts_them(models, world, model):
    folder = models / model
    policy = Policy.load(folder, world, adapter=LORA)
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    shapes = {name: head.shape for name, head in tensor_heads(folder).items()}
    found: Mapping[str, tuple[int, ...]] = LORA.matrix_shapes(shapes, vocabulary=640)
    assert sum(int(np.prod(shape)) for shape in found.values()) == trained


def test_engines_do_not_compute_them_beside_their_base(models):
    served = LoraConfig(rank=2, serve="adapter")
    with pytest.raises(ConfigError, match=r"lora\.serve 'adapter': .*exclude_modules=experts"):
        served.served_layers(models / "qwen3_moe")
    without = served.model_copy(update={"exclude_modules": ("experts",)})
    layers = without.served_layers(models / "qwen3_moe")
    assert {name.rpartition(".")[2] for name in layers} == {f"{it}_proj" for it in "qkvo"}
