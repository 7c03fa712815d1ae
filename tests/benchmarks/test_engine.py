"""`arl bench engine` serves every model that it compares."""

import pytest
import torch

from benchmarks import engine


@pytest.mark.slow
def test_both_sides_sample_from_every_model():
    found = engine.run(rounds=1, num_threads=torch.get_num_threads())
    *models, groups, conversations = found["ratios"]
    assert models == ["bundled tiny (Qwen3)", "random Llama", "random GPT-2"]
    assert all("prefix cache on / off" in name for name in (groups, conversations))
    rates, reuse = found["rows"][:6], found["rows"][6:]
    assert all(row["tokens_per_s"] > 0 for row in rates)
    for on, off in (reuse[:2], reuse[2:]):
        assert on["tokens_prefilled"] <= on["tokens_distinct"] < off["tokens_prefilled"]
