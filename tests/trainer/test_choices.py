"""Tokens that were drawn from a part of the vocabulary: log-probs, entropies and gradients are
those of the policy restricted to that part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from trainer_samples import VOCAB, make_row, replaced, save_tiny_model

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import Choices, Row
from agentgym_rl.core.token_records import ALL, FORCED, packed_set
from agentgym_rl.trainer import Policy

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 6  # long enough to be shared
# A toy grammar: an opening, one or two letters, and then the end.
OPEN, LETTERS, END = 7, (10, 11, 12, 13), 2


def _allowed(reply: tuple[int, ...]) -> tuple[int, ...]:
    if not reply:
        return (OPEN,)
    if len(reply) == 1:
        return LETTERS
    return (*LETTERS[:2], END) if len(reply) == 2 else (END,)


def _replies() -> list[tuple[int, ...]]:
    """All texts of the grammar."""
    found, open_ones = [], [()]
    while open_ones:
        longer = [(*reply, token) for reply in open_ones for token in _allowed(reply)]
        found += [reply for reply in longer if reply[-1] == END]
        open_ones = [reply for reply in longer if reply[-1] != END]
    return found


def _set(tokens) -> bytes:
    mask = np.zeros(VOCAB, np.bool_)
    mask[list(tokens)] = True
    return packed_set(np.packbits(mask, bitorder="little").tobytes())


def _row(reply: tuple[int, ...], temperature: float = 1.0) -> Row:
    options = [_allowed(reply[:at]) for at in range(len(reply))]
    sets = sorted({_set(one) for one in options if len(one) > 1})
    places = [FORCED if len(one) == 1 else sets.index(_set(one)) for one in options]
    index = np.array([ALL] * len(PROMPT) + places, np.int32)
    row = make_row(np.random.default_rng(0), len(index), temperature=temperature)
    trained = index >= 0
    return replaced(
        replace(row, choices=Choices(index, tuple(sets))),
        tokens=np.array([*PROMPT, *reply], np.int32),
        loss_mask=trained,
        temperatures=np.where(trained, temperature, 0).astype(np.float32),
    )


def _policy(folder, world, chunk: int = 0) -> Policy:
    trainer = TrainerConfig(head_chunk_tokens=chunk)
    return Policy.load(folder, world, master_dtype=torch.float64, trainer=trainer)


def _logits(policy: Policy, reply: tuple[int, ...]) -> torch.Tensor:
    with policy.unpacked():
        return policy.model(torch.tensor([[*PROMPT, *reply]]), use_cache=False).logits[0]


def _enumerated(policy: Policy, reply: tuple[int, ...], temperature: float) -> torch.Tensor:
    """The log-prob of a reply under the restricted policy, written down from its definition."""
    logits = _logits(policy, reply) / temperature
    total = logits.new_zeros(())
    for at, token in enumerate(reply):
        of_next = logits[len(PROMPT) + at - 1]
        total = total + of_next[token] - of_next[list(_allowed(reply[:at]))].logsumexp(0)
    return total


def _gradient(policy: Policy, value: torch.Tensor) -> torch.Tensor:
    policy.model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten().clone() for p in policy.model.parameters()])


@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize("chunk", [0, 3])
def test_the_gradient_is_that_of_the_expected_reward(tmp_path, world, chunk, share):
    replies = _replies()
    rewards = torch.linspace(-1, 2, len(replies), dtype=torch.float64)
    temperature = 0.75
    plain = _policy(save_tiny_model(tmp_path), world)
    known = [_enumerated(plain, reply, temperature) for reply in replies]
    chances = torch.stack(known).exp()
    assert chances.sum().item() == pytest.approx(1, abs=1e-12)
    expected = _gradient(plain, (chances * rewards).sum())

    policy = _policy(tmp_path, world, chunk)
    rows = [_row(reply, temperature) for reply in replies]
    packed = pack_rows(rows, share=share)
    assert (packed.branches is not None) == share
    logprobs = policy.logprobs(packed)
    counts = [row.num_trained for row in rows]
    each = [part.sum() for part in logprobs.split(counts)]
    assert torch.allclose(torch.stack(each), torch.stack(known), rtol=0, atol=1e-12)
    # REINFORCE with every reply, each as often as it is drawn.
    found = _gradient(policy, (chances.detach() * rewards * torch.stack(each)).sum())
    assert expected.abs().max() > 0.01
    # The model's norms are in float32, which shows where rows are computed as a tree.
    assert torch.allclose(found, expected, rtol=0, atol=1e-7 if share else 1e-10)


@pytest.mark.parametrize("chunk", [0, 3])
def test_entropies_and_their_gradient_are_of_the_allowed_tokens(tmp_path, world, chunk):
    reply = (OPEN, LETTERS[2], LETTERS[1], END)
    policy = _policy(save_tiny_model(tmp_path), world, chunk)
    scores = policy.scores(pack_rows([_row(reply)]))
    assert (scores.entropies > 0).all()
    found = _gradient(policy, scores.entropies.sum())
    plain = _policy(tmp_path, world)
    logits = _logits(plain, reply)
    total = logits.new_zeros(())
    for at in (1, 2):
        of_next = logits[len(PROMPT) + at - 1][list(_allowed(reply[:at]))].log_softmax(0)
        total = total - (of_next.exp() * of_next).sum()
    assert scores.entropies.sum().item() == pytest.approx(total.item(), abs=1e-12)
    assert torch.allclose(found, _gradient(plain, total), rtol=0, atol=1e-10)


def test_rows_with_and_without_choices_are_packed_together(tmp_path, world):
    """A token that two rows share is predicted twice if it was drawn from different sets."""
    reply = (OPEN, LETTERS[0], END)
    held = _row(reply)
    free = replace(held, choices=None)
    policy = _policy(save_tiny_model(tmp_path), world)
    packed = pack_rows([held, free, held], share=True)
    assert packed.tokens.shape[1] == len(held)
    assert len(packed.targets) == 2 * held.num_trained
    found = policy.logprobs(packed).split(held.num_trained)
    alone = [policy.logprobs(pack_rows([row])) for row in (held, free)]
    for mine, right in zip(found, [*alone, alone[0]], strict=True):
        assert torch.allclose(mine, right, rtol=0, atol=1e-12)
    assert (alone[0] > alone[1]).all()


def test_a_token_without_an_alternative_cannot_be_marked_as_trained():
    row = _row((OPEN, LETTERS[0], END))
    mask = row.loss_mask.copy()
    mask[len(PROMPT)] = True
    heat = np.ones(len(row), np.float32)
    with pytest.raises(ValueError, match="no alternative"):
        pack_rows([replace(row, loss_mask=mask, temperatures=heat)])


def test_damaged_sets_are_an_error():
    row = _row((OPEN, LETTERS[0], END))
    broken = Choices(row.choices.index, [one[:-4] for one in row.choices.sets])
    with pytest.raises(ValueError, match="allowed tokens"):
        pack_rows([replace(row, choices=broken)])
