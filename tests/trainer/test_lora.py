"""LoRA: an adapter trains, the weights below it stay, and whoever merges it gets the same model."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import torch
from arl_lora.keys import LoraConfig
from arl_warmup.trainer import learn
from rank_child import ALGO, TRAINER, make_stepper, train
from trainer_samples import make_row, plain_logprobs, replaced, save_checkpoint, save_tiny_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, TrainerError, WeightsError, install_command
from agentgym_rl.trainer import Policy, export_policy
from agentgym_rl.trainer.checkpoint import load_checkpoint
from agentgym_rl.trainer.policy import PolicyBase
from agentgym_rl.weights import fingerprint, peft_tensors, write_version
from agentgym_rl.weights.adapter import merged
from tests.kit.versions import read_version

LORA = LoraConfig(rank=4, alpha=8)
ROW = make_row(np.random.default_rng(3), 20)


def frozen(policy: Policy) -> dict[str, torch.Tensor]:
    parameters = policy.model.named_parameters()
    return {name: p.detach().clone() for name, p in parameters if not p.requires_grad}


@pytest.fixture(scope="module")
def trained(tiny_model, world):
    stepper = make_stepper(tiny_model, world, lora=LORA)
    before = frozen(stepper.policy)
    metrics = [train(stepper, step) for step in range(2)]
    return stepper, before, metrics


@pytest.mark.slow
def test_an_adapter_trains_alone(trained):
    stepper, before, metrics = trained
    assert metrics[0]["grad_norm"] > 0
    after = frozen(stepper.policy)
    assert len(after) > 10
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    trains = [name for name, p in stepper.policy.model.named_parameters() if p.requires_grad]
    assert len(trains) == 2 * 7 * 2  # A and B of seven linear layers in two blocks
    assert all(".lora_" in name for name in trains)


def test_a_new_adapter_changes_nothing(tiny_model, world):
    plain, adapted = (Policy.load(tiny_model, world, adapter=its) for its in (None, LORA))
    packed = pack_rows([ROW])
    assert torch.equal(adapted.logprobs(packed), plain.logprobs(packed))
    state = plain.full_state()
    assert all(torch.equal(t, state[name]) for name, t in adapted.full_state().items())
    other = Policy.load(tiny_model, world, adapter=LORA, seed=1)
    assert fingerprint(other.trained_state()) != fingerprint(adapted.trained_state())


def test_merged_it_says_what_the_trainer_says(trained, tiny_model, tmp_path):
    policy = trained[0].policy
    state, found = policy.trained_state(), policy.logprobs(pack_rows([ROW])).detach()
    path = write_version(tmp_path, 1, state)
    assert path.stat().st_size < (tiny_model / "model.safetensors").stat().st_size
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    assert not torch.allclose(plain_logprobs(model, ROW), found, atol=1e-3)
    weights = merged(read_version(path), tiny_model)
    model.load_state_dict(weights, strict=False)
    torch.testing.assert_close(plain_logprobs(model, ROW), found, rtol=0, atol=2e-6)
    assert weights.keys() == policy.full_state().keys()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft does
def test_peft_and_transformers_load_the_export(trained, tiny_model, tmp_path):
    from peft import PeftModel

    policy = trained[0].policy
    folder = export_policy(tmp_path / "x", policy, model_dir=tiny_model)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    adapted = PeftModel.from_pretrained(base, folder / "adapter")
    found = policy.logprobs(pack_rows([ROW])).detach()
    torch.testing.assert_close(plain_logprobs(adapted, ROW), found, rtol=0, atol=2e-6)
    torch.testing.assert_close(plain_logprobs(whole, ROW), found, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_the_base_is_the_reference(trained, tiny_model, world):
    stepper, packed = trained[0], pack_rows([ROW])
    frozen = Policy.load(tiny_model, world, frozen=True, master_dtype=torch.float64)
    before = stepper.policy.logprobs(packed)
    assert torch.equal(PolicyBase(stepper.policy).logprobs(packed), frozen.logprobs(packed))
    assert torch.equal(stepper.policy.logprobs(packed), before)
    algo = ALGO.model_copy(update={"kl": load_config(None, KL).algo.kl})
    ours, theirs = (make_stepper(tiny_model, world, algo, lora=LORA) for _ in range(2))
    (reference,) = theirs.model_terms
    assert isinstance(reference._model, PolicyBase)
    reference._model = frozen
    for step in range(2):
        assert train(ours, step) == pytest.approx(train(theirs, step), rel=1e-12)


KL = {"algo.kl.coef": 0.1, "algo.kl.reference": "initial"}


@pytest.mark.parametrize(
    "how",
    [{"activation_checkpointing": True, "head_chunk_tokens": 5}, {"max_tokens_per_microbatch": 96}],
    ids=["memory options", "other micro-batches"],
)
def test_options_change_nothing(trained, tiny_model, world, how):
    stepper = make_stepper(tiny_model, world, trainer=TRAINER.model_copy(update=how), lora=LORA)
    for step, expected in enumerate(trained[2]):
        assert train(stepper, step) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.mark.slow
def test_a_checkpoint_has_the_adapter_alone(trained, tiny_model, other_model, world, tmp_path):
    stepper = trained[0]
    path = save(tmp_path / "lora", stepper)
    size = sum(file.stat().st_size for file in path.glob("*.distcp"))
    full = save(tmp_path / "full", make_stepper(tiny_model, world))
    assert size < sum(file.stat().st_size for file in full.glob("*.distcp"))
    resumed = make_stepper(tiny_model, world, lora=LORA)
    load_checkpoint(path, resumed.policy, resumed.optimizer)
    parameters = fingerprint(stepper.policy.trained_state())
    assert fingerprint(resumed.policy.trained_state()) == parameters
    straight = make_stepper(tiny_model, world, lora=LORA)
    for step in range(2):
        train(straight, step)
    assert train(resumed, 2) == train(straight, 2)
    for model, lora, why in (
        (other_model, LORA, "weights .*, and this run"),
        (tiny_model, None, "and this run trains all weights"),
    ):
        foreign = make_stepper(model, world, lora=lora)
        with pytest.raises(TrainerError, match=why):
            load_checkpoint(path, foreign.policy, foreign.optimizer)


def test_a_warm_up_trains_it_too(tiny_model, world):
    init = {"init.method": "sft", "init.data": "d", "init.epochs": 8, "init.learning_rate": 0.05}
    config = load_config(None, {**init, "lora.rank": 4, "trainer.schedule": "constant"})
    policy = Policy.load(tiny_model, world, adapter=config.lora)
    row = replaced(ROW, temperatures=ROW.loss_mask.astype(np.float32))
    losses = [told["loss"] for told in learn(policy, [row], config.init, config.trainer, seed=1)]
    assert losses[-1] < losses[0]
    plain = dict(AutoModelForCausalLM.from_pretrained(tiny_model).named_parameters())
    changed = {n for n, t in policy.full_state().items() if not torch.equal(t, plain[n])}
    assert changed == {name for name in plain if "_proj" in name}


def save(folder, stepper):
    return save_checkpoint(
        folder, stepper.policy, stepper.optimizer, step=2, config_hash="h", keep=1
    )


def test_another_base_is_refused(trained, other_model):
    with pytest.raises(WeightsError, match="trained on other weights"):
        merged(trained[0].policy.trained_state(), other_model)


def test_in_bfloat16_the_adapter_is_kept_in_float32_and_the_blocks_are_not(tiny_model, world):
    plain, adapted, reference = (
        Policy.load(tiny_model, world, compute_dtype="bfloat16", adapter=lora, frozen=frozen)
        for lora, frozen in ((None, False), (LORA, False), (None, True))
    )
    packed = pack_rows([ROW])
    for policy in (adapted, reference):
        assert torch.equal(policy.logprobs(packed), plain.logprobs(packed))
        kept = policy.model.model.layers[0].state_dict()
        linear = {t.dtype for name, t in kept.items() if "_proj" in name and ".lora_" not in name}
        assert linear == {torch.bfloat16}
    adapted.logprobs(packed).sum().backward()
    grads = [p.grad for p in adapted.model.parameters() if p.requires_grad]
    assert {grad.dtype for grad in grads} == {torch.float32}
    tensors = peft_tensors(adapted.trained_state()).values()
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_layers_are_chosen_by_name(tiny_model, world):
    lora = LoraConfig(
        rank=2, target_modules=("q_proj", "v_proj"), exclude_modules=("layers.0.self_attn.v_proj",)
    )
    names = peft_tensors(Policy.load(tiny_model, world, adapter=lora).trained_state())
    layers = {
        name.removeprefix("base_model.model.model.layers.").rsplit(".lora_")[0] for name in names
    }
    assert layers == {"0.self_attn.q_proj", "1.self_attn.q_proj", "1.self_attn.v_proj"}


def refused(model, world, **fields) -> str:
    with pytest.raises(TrainerError) as error:
        Policy.load(model, world, adapter=LoraConfig(rank=2, **fields))
    return str(error.value)


def test_what_cannot_be_adapted_is_refused(tiny_model, world, tmp_path):
    assert "Target modules {'q'} not found" in refused(tiny_model, world, target_modules=("q",))
    assert "lm_head is an embedding or the output layer" in refused(
        save_tiny_model(tmp_path / "untied", tied=False), world, target_modules=("lm_head",)
    )
    assert "embed_tokens is an embedding" in refused(
        tiny_model, world, target_modules=("embed_tokens",)
    )
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    assert "is a Conv1D" in refused(tmp_path / "gpt2", world)


def test_without_peft_it_says_what_to_install(tiny_model, world, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=re.escape(install_command("lora"))):
        Policy.load(tiny_model, world, adapter=LORA)


def test_wrong_settings_are_refused():
    for key, why in {
        "lora.alpha": "alpha has no effect without a rank",
        "lora.target_modules": "target_modules has no effect without a rank",
        "lora.dropout": r"unknown key lora\.dropout; it would give a token another log-prob",
        "trainer.tensor_parallel": r"unknown key trainer\.tensor_parallel; trainer\.mesh cuts",
        "trainer.context_parallel": r"unknown key trainer\.context_parallel; trainer\.mesh cuts",
    }.items():
        with pytest.raises(ConfigError, match=why):
            load_config(None, {key: 2 if key != "lora.target_modules" else "q_proj"})
    with pytest.raises(ConfigError, match="'nccl', vLLM's own, has no way to merge"):
        load_config(None, {"lora.rank": 8, "weights.transport": "nccl", "engine.type": "vllm"})
