"""Mixtures of experts in the trainer: packed as transformers computes them, and with the experts
that an engine recorded."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from trainer_samples import make_row

from agentgym_rl.algo import Routers, pack_rows, routers_of
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import UNKNOWN_EXPERT, ConfigError
from agentgym_rl.core.token_records import Experts
from agentgym_rl.trainer import Policy
from tests.kit.cases import cases
from tests.kit.moe import FAMILIES, NO_REPLAY, VOCAB, build

RNG = np.random.default_rng(0)
ROWS = [make_row(RNG, length, temperature=1.0, vocab=VOCAB) for length in (20, 41, 9)]


def plain(model, row, experts=None):
    """The log-probs of the trained tokens of a row, by the model's own forward of the row alone;
    and the experts of all its tokens."""
    routers = model.routers
    with torch.no_grad(), routers.replaying(experts):
        logits = model(torch.as_tensor(row.tokens, dtype=torch.long)[None], use_cache=False).logits
    places = np.flatnonzero(row.loss_mask)
    scores = torch.log_softmax(logits[0, places - 1], -1)
    found = scores.gather(1, torch.as_tensor(row.tokens[places], dtype=torch.long)[:, None])
    return found[:, 0], routers.chosen


def engine_and_trainer(family, world, *, noise=0.3, **trainer):
    """A model, its rows with the experts that it chooses, and the log-probs that it gives them; and
    a policy of the same weights, except that its routers are others."""
    model = build(FAMILIES[family])
    model.routers = Routers.of(model)
    rows, logprobs = [], []
    for row in ROWS:
        found, experts = plain(model, row)
        rows.append(replace(row, experts=Experts(experts.numpy())))
        logprobs.append(found)
    other = build(FAMILIES[family])
    for name, module in other.named_modules():
        if name.endswith(("mlp.gate", "mlp.router")):
            torch.manual_seed(1)
            module.weight.data += noise * torch.randn_like(module.weight)
    policy = Policy(
        other, world, routing_replay="on", trainer=TrainerConfig(**trainer) if trainer else None
    )
    return model, rows, torch.cat(logprobs), policy


@pytest.mark.filterwarnings("ignore")  # of transformers, about a factor of GPT-OSS
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows_are_right_with_the_own_experts_and_with_recorded_ones(world, family):
    _, rows, logprobs, policy = engine_and_trainer(family, world, noise=0.0)
    with torch.no_grad():
        for some in (ROWS, rows):
            found = policy.logprobs(pack_rows(some))
            torch.testing.assert_close(found, logprobs, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_router_that_would_choose_others_takes_the_recorded_experts(world, family):
    _, rows, _, policy = engine_and_trainer(family, world)
    twin = build(FAMILIES[family])
    twin.load_state_dict(policy.model.state_dict())
    twin.routers = Routers.of(twin)
    expected = [plain(twin, row, torch.as_tensor(row.experts.ids))[0] for row in rows]
    with torch.no_grad():
        replayed, free = (policy.logprobs(pack_rows(some)) for some in (rows, ROWS))
    torch.testing.assert_close(replayed, torch.cat(expected), rtol=0, atol=1e-4)
    assert (free - replayed).abs().max() > 1e-2


def test_a_router_that_disagrees_gives_wrong_ratios_without_replay_and_exact_ones_with_it(world):
    """The bias of these routers changes their choice, and not the weights of what is chosen."""
    _, rows, logprobs, policy = engine_and_trainer("deepseek_v3", world, noise=0.0)
    for module in policy.model.modules():
        if type(module).__name__ == "DeepseekV3TopkRouter":
            module.e_score_correction_bias += torch.linspace(0, 0.5, 8)
    with torch.no_grad():
        replayed, free = (policy.logprobs(pack_rows(some)) for some in (rows, ROWS))
    assert ((free - logprobs).exp() - 1).abs().max() > 0.1
    torch.testing.assert_close((replayed - logprobs).exp(), torch.ones(len(logprobs)))


def test_unknown_tokens_are_routed_by_the_trainer(world):
    _, rows, _, policy = engine_and_trainer("qwen3_moe", world)
    none = [replace(row, experts=Experts(np.full_like(row.experts.ids, -1))) for row in rows]
    with torch.no_grad():
        free = policy.logprobs(pack_rows(ROWS))
        assert torch.equal(policy.logprobs(pack_rows(none)), free)
        assert torch.equal(policy.logprobs(pack_rows([*none[:1], *ROWS[1:]])), free)
        half = rows[1].experts.ids.copy()
        half[20:] = UNKNOWN_EXPERT
        some = policy.logprobs(pack_rows([replace(rows[1], experts=Experts(half))]))
        whole, alone = (policy.logprobs(pack_rows([row])) for row in (rows[1], ROWS[1]))
    early = np.flatnonzero(rows[1].loss_mask) <= 20
    torch.testing.assert_close(some[early], whole[early])
    assert not torch.allclose(some[~early], whole[~early])
    assert not torch.allclose(some, alone)


def test_what_was_computed_by_other_experts_is_not_shared(world):
    _, rows, _, policy = engine_and_trainer("qwen3_moe", world)
    assert policy.shares_prefixes
    first, long = rows[1], len(rows[1])
    same = replace(first, experts=Experts(first.experts.ids.copy()))
    ids = first.experts.ids.copy()
    ids[30] = (ids[30] + 1) % 8
    other = replace(first, experts=Experts(ids))
    tree = pack_rows([first, same, other], share=True)
    assert tree.tokens.shape[1] == long + (long - 30)
    with torch.no_grad():
        alone = torch.cat([policy.logprobs(pack_rows([row])) for row in (first, same, other)])
        together = policy.logprobs(tree)
        ((_, packed),) = policy.micro_batches([first, same, other])
        again = policy.logprobs(packed)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-4)
    torch.testing.assert_close(again, alone, rtol=0, atol=1e-4)
    count = first.num_trained
    assert not torch.allclose(alone[:count], alone[2 * count :])


@cases("trainer", [{}, {"activation_checkpointing": True}])
def test_gradients_flow_through_the_weights_of_recorded_experts(world, trainer):
    """Compared with a layer written by hand, in float64."""
    model = build(FAMILIES["qwen3_moe"]).double()
    model.set_experts_implementation("eager")  # the grouped products have no float64
    policy = Policy(model, world, routing_replay="on", trainer=TrainerConfig(**trainer))
    torch.manual_seed(3)
    block = policy.model.model.layers[1].mlp
    hidden = torch.randn(1, 5, 32, dtype=torch.float64)
    given = torch.stack([torch.randperm(8)[:2] for _ in range(5)]).to(torch.int16)
    policy._routers.give(given[:, None].expand(-1, 3, -1))
    found = block(hidden)
    found.square().sum().backward()
    router, up, down = (
        p.detach().clone().requires_grad_()
        for p in (block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj)
    )
    expected = by_hand(hidden[0], given.long(), router, up, down)
    expected.square().sum().backward()
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-12)
    for mine, theirs in (
        (block.gate.weight, router),
        (block.experts.gate_up_proj, up),
        (block.experts.down_proj, down),
    ):
        assert theirs.grad.abs().max() > 0
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-10)


def by_hand(hidden, given, router, up, down):
    """A layer of experts, token for token, with these experts."""
    result = []
    for one, chosen in zip(hidden, given, strict=True):
        weights = torch.softmax((router @ one).float(), -1)[chosen]
        weights = (weights / weights.sum()).double()
        parts = []
        for expert in chosen.tolist():
            gate, value = (up[expert] @ one).chunk(2)
            parts.append(down[expert] @ (F.silu(gate) * value))
        result.append(sum(w * part for w, part in zip(weights, parts, strict=True)))
    return torch.stack(result)


def test_recomputed_blocks_replay_too(world):
    gradients = []
    for trainer in ({}, {"activation_checkpointing": True}):
        _, rows, _, policy = engine_and_trainer("qwen3_moe", world, **trainer)
        policy.logprobs(pack_rows(rows)).sum().backward()
        gradients.append([p.grad.clone() for p in policy.model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NO_REPLAY)
def test_a_model_that_cannot_replay_is_refused_by_name(kind, caplog):
    config, why = NO_REPLAY[kind]
    model = build(config)
    tokens = torch.arange(3, 9)[None]
    before = model(tokens, use_cache=False).logits
    with pytest.raises(ConfigError, match=f"engine.routing_replay 'on' has no effect.*{why}"):
        routers_of(model, "on")
    assert routers_of(model, "auto") is None
    assert (why in caplog.text) == (kind != "dense")
    assert torch.equal(model(tokens, use_cache=False).logits, before)


def test_routing_is_not_replayed_unless_wanted(world):
    assert routers_of(build(FAMILIES["mixtral"]), "off") is None
    _, rows, logprobs, _ = engine_and_trainer("mixtral", world)
    policy = Policy(build(FAMILIES["mixtral"]), world)
    with torch.no_grad():
        wrong = [replace(row, experts=Experts((row.experts.ids + 1) % 8)) for row in rows]
        found = policy.logprobs(pack_rows(wrong))
    torch.testing.assert_close(found, logprobs, rtol=0, atol=1e-4)
