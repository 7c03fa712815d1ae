import numpy as np
import pytest
import torch
from arl_embedded.batch import prefill_groups
from arl_embedded.request import Sampling
from arl_embedded.sampler import Sampler, drawn, random_key, restrict, uniforms

from tests.kit.cases import cases


def _sampling(key=1, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0):
    return Sampling(temperature, top_p, top_k, min_p, key)


def test_uniforms_are_uniform_and_independent_of_the_batch():
    counters = np.arange(20_000, dtype=np.uint64)
    keys = np.full(20_000, random_key("a"), dtype=np.uint64)
    draws = uniforms(keys, counters)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert np.histogram(draws, 20, (0, 1))[0].std() < 100  # expected 31
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.03
    assert uniforms(keys[7:8], counters[7:8])[0] == draws[7]


def test_frequencies_follow_the_softmax():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -8.0]]).expand(4000, -1)
    sampler = Sampler(torch.device("cpu"))
    sampler.set_rows(
        [_sampling(key=random_key(i), temperature=0.8) for i in range(4000)], [0] * 4000
    )
    tokens, logprobs = sampler.sample(logits)
    want = torch.softmax(logits[0] / 0.8, -1)
    got = torch.bincount(tokens, minlength=5) / 4000
    assert (got - want).abs().max() < 0.03
    assert torch.allclose(logprobs, want.log()[tokens], atol=1e-6)


@cases("size", [5, 4096, 4097, 10_000, 49_152])
def test_a_draw_ends_where_the_cumulated_probabilities_exceed_it(size):
    generator = torch.Generator().manual_seed(size)
    probs = torch.softmax(4 * torch.randn(64, size, generator=generator), -1)
    probs[:32, : size // 2] = 0
    draws = torch.rand(64, dtype=torch.float64, generator=generator)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    got = drawn(probs, draws)[:, None]
    target = draws[:, None] * cumulative[:, -1:]
    hair = 1e-6  # the two ways to sum differ by rounding
    assert (cumulative.gather(1, got) > target - hair).all()
    assert (cumulative.gather(1, got) - probs.gather(1, got) <= target + hair).all()


@cases("size", [5, 4096, 10_000, 49_152])
def test_no_draw_ends_at_a_token_without_probability(size):
    probs = torch.zeros(3, size)
    only = torch.tensor([0, size // 2, size - 1])
    probs[torch.arange(3), only] = 1
    for draw in (0.0, 0.5, 1 - 2**-53):
        draws = torch.full((3,), draw, dtype=torch.float64)
        assert torch.equal(drawn(probs, draws), only), draw


def test_a_row_draws_the_same_whoever_its_neighbours_are():
    logits = torch.randn(3, 50)
    alone, together = Sampler(torch.device("cpu")), Sampler(torch.device("cpu"))
    alone.set_rows([_sampling(key=9)], [4])
    together.set_rows([_sampling(key=5), _sampling(key=9, top_p=1.0), _sampling(key=6)], [0, 4, 2])
    assert together.sample(logits)[0][1] == alone.sample(logits[1:2])[0][0]


def test_restrict_keeps_the_smallest_set_and_renormalises():
    probs = torch.tensor([[0.5, 0.2, 0.2, 0.1]])
    one = torch.ones(1, 1)
    cut = restrict(probs, one * 4, one * 0.6, one * 0)
    assert torch.allclose(cut, torch.tensor([[5 / 7, 2 / 7, 0, 0]]))
    cut = restrict(probs, one * 1, one * 2, one * 0)
    assert cut.tolist() == [[1, 0, 0, 0]]
    cut = restrict(probs, one * 4, one * 2, one * 0.3)
    assert torch.allclose(cut, torch.tensor([[5 / 9, 2 / 9, 2 / 9, 0]]))
    cut = restrict(probs, one * 4, one * 1e-6, one * 0)
    assert cut.tolist() == [[1, 0, 0, 0]]


def test_excluded_tokens_are_never_drawn():
    logits = torch.randn(1, 30).expand(3000, -1)
    sampler = Sampler(torch.device("cpu"))
    sampler.set_rows([_sampling(key=i * 7919, top_k=3) for i in range(3000)], [0] * 3000)
    tokens, _ = sampler.sample(logits)
    assert set(tokens.tolist()) == set(logits[0].topk(3).indices.tolist())


def test_mixed_rows_greedy_restricted_and_plain():
    logits = torch.randn(3, 20)
    sampler = Sampler(torch.device("cpu"))
    sampler.set_rows([_sampling(temperature=0), _sampling(top_k=1), _sampling()], [0, 0, 0])
    tokens, logprobs = sampler.sample(logits)
    assert tokens[0] == logits[0].argmax()
    assert tokens[1] == logits[1].argmax()
    assert logprobs[1] == 0
    assert logprobs[0] == pytest.approx(float(torch.log_softmax(logits[0], -1).max()), abs=1e-6)


@cases(
    "lengths, expected",
    [
        ([], []),
        ([0, 0], [range(2)]),
        ([0, 5], [range(1), range(1, 2)]),
        ([10, 12, 14], [range(3)]),
        ([10, 100], [range(1), range(1, 2)]),
        ([60, 60, 60], [range(1), range(1, 2), range(2, 3)]),
    ],
)
def test_prefill_groups(lengths, expected):
    assert prefill_groups(lengths, budget=100) == expected
