"""How much memory a trainer on a CPU takes, in tensors that torch allocates: no clock, no luck."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from arl_plan.command import Models
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from trainer_samples import make_row, make_shards, save_checkpoint, with_behavior
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.core import BatchRow, Row, adapter_of
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.trainer import (
    Phases,
    Policy,
    ShardTokens,
    Stepper,
    frozen_pass,
    make_optimizer,
    make_stepper,
    packed,
)
from agentgym_rl.trainer.packing_trial import activation_bytes
from agentgym_rl.trainer.policy import ChunkedHead, default_chunk
from agentgym_rl.trainer.sharding import blocks_of
from agentgym_rl.weights import load_whole, write_version
from tests.kit.cases import cases

VOCAB = 8192


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    """A random model of ten million parameters with the proportions of a real one."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=288,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("middling")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def row(rng: np.random.Generator, length: int) -> Row:
    """A row whose behavior log-probs are about those of a random model."""
    drawn = make_row(rng, length, temperature=1.0, vocab=VOCAB)
    return with_behavior(drawn, np.full(drawn.num_trained, -9.0))


def peak_bytes(act: Callable[[], object]) -> int:
    """The most bytes of tensors at one time, beyond those from before, while `act` runs."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = act()
    del kept
    results = seen.profiler.kineto_results  # type: ignore[union-attr]
    found = [e for e in results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(found, key=lambda e: e.start_ns())]
    return int(np.cumsum([0, *sizes]).max())


def stepper_of(model_dir: Path, world, **trainer) -> tuple[Stepper, int]:
    given = {f"trainer.{name}": value for name, value in trainer.items()}
    given |= {"trainer.learning_rate": 1e-5, "engine.max_model_len": 256}
    config = load_config(overrides=given)
    stepper = make_stepper(config, world, model_dir)
    return stepper, sum(p.nbytes for p in stepper.policy.model.parameters())


def train(stepper: Stepper) -> None:
    rng = np.random.default_rng(0)
    items = [BatchRow(row(rng, int(n)), i) for i, n in enumerate(rng.integers(40, 120, 16))]
    rewards, groups = [float(i % 2) for i in range(16)], [f"g{i // 8}" for i in range(16)]
    (shard,) = make_shards(items, rewards, groups, num_minibatches=1)
    stepper.train_shard(shard, Phases())


@pytest.mark.slow
def test_a_step_takes_six_times_the_weights_at_most(model_dir, world, monkeypatch):
    """Parameters and Adam's state take three times, gradients one; the rest is for activations."""
    monkeypatch.setattr(packed, "_ROOM", 0)  # small models may use more: it is little
    stepper, size = stepper_of(model_dir, world)
    assert 64 < stepper.policy.microbatch_tokens < 1000
    state = sum(t.nbytes for s in stepper.optimizer.state.values() for t in s.values())
    assert 2 <= state / size < 2.01
    peaks = [peak_bytes(lambda: train(stepper)) for _ in range(2)]
    assert 1 < peaks[0] / size < 2.5
    assert peaks[1] == pytest.approx(peaks[0], rel=0.05)


MOVING = {"algo.kl.coef": 0.1, "algo.kl.reference": "initial", "algo.kl.refresh_every": 1}
STAYING = MOVING | {"algo.kl.refresh_every": 0}
TAUGHT = {"algo.teacher.models": ["bundled/math", "bundled/agents", "http://there"]}


@cases(
    "keys",
    [
        MOVING | {"trainer.optimizer": "muon"},
        {"trainer.optimizer": "adamw8bit"},
        {"trainer.optimizer": "adamw_bf16"},
        TAUGHT | STAYING | {"engine.dtype": "bfloat16"},
        {"lora.rank": 4, "trainer.optimizer": "muon"} | STAYING,
        {"preset": "ppo-critic", "trainer.optimizer": "muon"},
        {"lora.rank": 4, "lora.target_modules": "q_proj,v_proj", "engine.dtype": "bfloat16"},
    ],
)
@pytest.mark.slow
def test_arl_plan_counts_the_bytes_of_a_trainer(world, keys):
    """Weights, optimizer state and other models: to the last byte, but for steps (one number)."""
    config = load_config(None, keys | {"trainer.learning_rate": 1e-5})
    if config.trainer.optimizer == "adamw8bit":
        pytest.importorskip("torchao")
    models = Models.of(config.algo, BUNDLED)
    plan = models.memory(
        config.trainer, adapter_of(config), dtype=config.compute_dtype, parameters=0
    )
    stepper = make_stepper(config, world, BUNDLED)
    states = [it.items() for it in stepper.optimizer.state.values()]
    state = sum(stored(t) for its in states for name, t in its if name != "step")
    policy = [*stepper.policy.model.parameters()]
    held = [it for term in stepper.model_terms for it in term.models]
    others = {it for it in held if isinstance(it, Policy)}
    moving = {getattr(term, "_moving", None) for term in stepper.model_terms} - {None}
    assert plan is not None
    assert plan.optimizer == state
    assert plan.weights == sum(p.nbytes for p in policy)
    assert plan.gradients == sum(p.nbytes for p in policy if p.requires_grad)
    assert plan.moving == sum(p.nbytes for it in moving for p in it.model.parameters())
    assert plan.frozen == sum(p.nbytes for it in others - moving for p in it.model.parameters())
    critics = [it for term in stepper.model_terms for it in term.optimizers]
    judges = [p.nbytes for it in held if it not in others for p in it.model.parameters()]
    its = [it.items() for optimizer in critics for it in optimizer.state.values()]
    learned = sum(stored(t) for of in its for name, t in of if name != "step")
    assert (plan.critic, plan.critic_gradients) == (sum(judges) + learned, sum(judges))
    total = plan.weights + state + plan.moving + plan.frozen + plan.critic
    assert plan.rank == total + max(plan.gradients, plan.critic_gradients)


def stored(tensor: torch.Tensor) -> int:
    """The bytes of a tensor, or of the parts of one with 8 bits a number."""
    parts = [getattr(tensor, name) for name in ("codes", "scale") if hasattr(tensor, name)]
    return sum(part.nbytes for part in parts or [tensor])


def test_arl_plan_counts_the_matrices_of_a_mixture_as_the_optimizer_does(world, tmp_path):
    """Stacks of experts are not Muon's."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2}
    made = Qwen3MoeConfig(vocab_size=640, tie_word_embeddings=False, **sizes, **heads, **experts)
    Qwen3MoeForCausalLM(made).save_pretrained(tmp_path)
    config = load_config(None, {"trainer.optimizer": "muon", "trainer.learning_rate": 1e-5})
    plan = Models.of(config.algo, tmp_path).memory(
        config.trainer, adapter_of(config), dtype="float32"
    )
    policy = Policy.load(tmp_path, world, trainer=config.trainer)
    states = [it.items() for it in make_optimizer(policy.model, config.trainer).state.values()]
    assert plan is not None
    assert plan.optimizer == sum(t.nbytes for its in states for name, t in its if name != "step")


@pytest.mark.slow
def test_a_version_or_a_checkpoint_is_no_second_copy(model_dir, world, tmp_path):
    stepper, size = stepper_of(model_dir, world)
    train(stepper)

    def publish() -> None:
        write_version(tmp_path, 1, stepper.policy.exported())

    def save() -> None:
        folder, policy = tmp_path / "checkpoints", stepper.policy
        save_checkpoint(folder, policy, stepper.optimizer, step=1, config_hash="", keep=1)

    assert peak_bytes(publish) < 0.05 * size
    assert peak_bytes(save) < 0.4 * size
    assert (tmp_path / "checkpoints" / "step-1").is_dir()


@pytest.mark.slow
def test_what_saves_memory_changes_no_gradient(model_dir, world, monkeypatch):
    """Smaller micro-batches, light blocks, a chunked head and freed memory, beside none of them."""
    found, sizes, given_back = [], [], []
    monkeypatch.setattr(packed, "give_back_memory", lambda: given_back.append(sizes[-1]))
    for room, chunk in ((0, 64), (1 << 40, 0)):
        monkeypatch.setattr(packed, "_ROOM", room)
        options = {"max_grad_norm": 1e9, "head_chunk_tokens": chunk}
        stepper, _ = stepper_of(model_dir, world, **options)
        sizes.append(stepper.policy.microbatch_tokens)
        seen: list[torch.Tensor] = []
        stepper.optimizer.register_step_pre_hook(
            lambda *_, of=stepper, seen=seen: seen.extend(
                p.grad.clone() for p in of.policy.model.parameters()
            )
        )
        train(stepper)
        found.append(torch.cat([gradient.flatten() for gradient in seen]))
    assert sizes[0] < 1000 < sizes[1] == 4096
    assert given_back == sizes[:1]
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-6)
    assert found[0].abs().max() > 1e-4


def test_activations_are_counted_without_blocks_that_are_whole_only_while_they_compute():
    """As FSDP has them: their memory is another one for each pass, and is used again after it."""
    model, _ = load_whole(BUNDLED, dtype=torch.float32)
    expected = activation_bytes(model, segmented=False)
    assert 0 < expected[1] < expected[0]
    blocks = blocks_of(model)
    shards = {p: p.detach().clone() for block in blocks for p in block.parameters()}
    walks: list[bool] = []

    def unshard(block: torch.nn.Module, *_: object) -> None:
        for p in block.parameters():
            p.untyped_storage().resize_(shards[p].nbytes)
            p.detach().copy_(shards[p])

    def reshard(block: torch.nn.Module, *_: object) -> None:
        for p in block.parameters():
            p.untyped_storage().resize_(0)

    for block in blocks:
        reshard(block)
        block.register_forward_pre_hook(unshard)
        block.register_forward_hook(reshard)
    own = model.parameters
    model.parameters = lambda recurse=True: walks.append(recurse) or own(recurse)
    assert activation_bytes(model, segmented=False) == expected
    assert sum(walks) < 4 * len(blocks), "parameters are walked for each tensor that is saved"


@pytest.mark.parametrize(
    ("vocab", "tokens", "chunk"),
    [(640, 4096, 0), (4096, 4096, 0), (49_152, 300, 0), (49_152, 4096, 85), (151_936, 512, 64)],
)
def test_the_default_chunk_follows_from_the_size_of_the_logits(vocab, tokens, chunk):
    assert default_chunk(vocab, tokens) == chunk


@pytest.mark.parametrize("kept", [0, 1 << 30])
@pytest.mark.slow
def test_log_probs_kept_or_computed_again_give_the_same_gradient(
    model_dir, world, monkeypatch, kept
):
    from agentgym_rl.trainer import policy as module

    monkeypatch.setattr(module, "KEPT_BYTES", kept)
    rows = pack_rows([row(np.random.default_rng(1), 50), row(np.random.default_rng(2), 70)])
    gradients = []
    for chunk in (0, 16):
        trainer = TrainerConfig(head_chunk_tokens=chunk)
        model = Policy.load(model_dir, world, trainer=trainer, master_dtype=torch.float64)
        logprobs, entropies, _ = model.scores(rows)
        (logprobs.sum() + 0.3 * entropies.sum()).backward()
        gradients.append([p.grad for p in model.model.parameters()])
    assert isinstance(model.model.lm_head.forward, ChunkedHead)
    for mine, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-9)


def test_a_longer_row_than_a_micro_batch_still_fits(model_dir, world, monkeypatch):
    monkeypatch.setattr(packed, "_ROOM", 0)
    stepper, _ = stepper_of(model_dir, world, max_tokens_per_microbatch=400)
    policy = stepper.policy
    assert policy.budget([30, 20]) == policy.microbatch_tokens < 390
    assert policy.budget([390, 20]) == 390
    assert policy.budget([500]) == 400  # which is refused, by its length
    long = row(np.random.default_rng(0), 390)
    assert len(policy.logprobs(pack_rows([long]))) == long.num_trained


def test_a_frozen_pass_leaves_nothing_of_its_model_gathered(tiny_model, world):
    """The embeddings and the head of a large teacher would take gigabytes while the policy
    trains."""
    # In bfloat16 it is sharded, even by a single rank.
    teacher = Policy.load(tiny_model, world, frozen=True, master_dtype=torch.bfloat16)
    rows = [BatchRow(make_row(np.random.default_rng(n), 9), n) for n in range(2)]
    (shard,) = make_shards(rows, [0.0, 1.0], ["a", "a"])
    tokens = ShardTokens.from_shard(shard, vocab_size=teacher.vocab_size)
    found = frozen_pass(teacher, teacher.logprobs, tokens)
    assert len(found) == len(tokens.episodes) > 0
    assert all(isinstance(it, DTensor) for it in teacher.model.parameters())
