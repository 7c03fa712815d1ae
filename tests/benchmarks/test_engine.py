"""`arl bench engine` serves every model that it compares."""

import pytest
import torch

from benchmarks import engine


@pytest.mark.slow
def test_both_sides_sample_from_every_model():
    found = engine.run(rounds=1, num_threads=torch.get_num_threads())
    assert list(found["ratios"]) == ["bundled tiny (Qwen3)", "random Llama", "random GPT-2"]
    assert len(found["rows"]) == 6
    assert all(row["tokens_per_s"] > 0 for row in found["rows"])
