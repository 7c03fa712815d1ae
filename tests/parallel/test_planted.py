"""Errors that are planted in ranks show in the comparison with one rank."""

from __future__ import annotations

import pytest
from meshes import MESHES, cells

from tests.exhaustive import EXHAUSTIVE

EVERY = [
    ("rows cut one token late", "c2", "plain"),
    ("own tokens one late", "c4", "two heads and shared beginnings"),
    ("positions restart", "c2", "plain"),
    ("query norm not added up", "t2", "plain"),
    ("adapter not added up", "t2", "LoRA"),
    ("padding of vocabulary counts", "t2", "vocabulary 43, untied"),
    ("token of experts dropped", "e2", "qwen3_moe"),
    ("copies count in the norm", "2 replicas of t2", "plain"),
    ("replicated vectors count twice in the norm", "t2", "plain"),
    ("sinks dropped", "c2", "gpt_oss"),
    ("sinks of other heads", "t2", "gpt_oss"),
    ("bias added to other outputs", "t2", "phi"),
    ("gradient of gathering not added up", "t2", "plain"),
    ("predictions in another order", "c2", "plain"),
    ("experts replayed of other tokens", "c2e2", "experts replayed"),
]
USUAL = {
    *("rows cut one token late", "query norm not added up", "padding of vocabulary counts"),
    *("token of experts dropped", "copies count in the norm", "sinks dropped"),
    "adapter not added up",
}
CASES = [case for case in EVERY if EXHAUSTIVE or case[0] in USUAL]


@pytest.mark.slow
@pytest.mark.parametrize(("planted", "mesh", "name"), CASES, ids=[case[0] for case in CASES])
def test_a_planted_error_shows(planted, mesh, name, models, references, tmp_path):
    """By default, some of the errors."""
    its = cells(MESHES[mesh], [name], references, models, tmp_path, planted=planted)[name]
    assert max(its.values()) > 1e-6
