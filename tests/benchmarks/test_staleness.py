"""What the survey of staleness makes of its rows."""

import json

import pytest

from benchmarks import staleness

CURVE = [0.2, 0.4, 0.6, 0.8, 1.0, 0.5]


def a_row(variant: str, bound: int, seed: int, eval_after: float) -> dict:
    figures = ("best_training_reward", "last_training_reward", "staleness_mean", "prob_error")
    return {
        **{"variant": variant, "bound": bound, "seed": seed, "eval_after": eval_after},
        **dict.fromkeys(figures, 1.0),
        **{"train_s": 30.0, "rewards": CURVE},
    }


ROWS = [a_row("naive", 8, 1, 0.5), a_row("naive", 8, 2, 0.9), a_row("decoupled", 0, 1, 0.9)]


def test_a_line_for_each_variant_and_bound_over_its_seeds():
    naive, decoupled = staleness.table([*ROWS, {"variant": "naive", "bound": 8, "error": "x"}])
    assert (naive["variant"], naive["seeds"]) == ("naive", 2)
    assert (naive["eval_after"], naive["worst"]) == (0.7, 0.5)
    assert (decoupled["bound"], decoupled["seeds"]) == (0, 1)


@pytest.mark.slow
def test_rows_that_are_there_are_not_measured_again(tmp_path, monkeypatch):
    kept, picture = tmp_path / "rows", tmp_path / "curves.png"
    kept.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.setenv("ARL_BENCH_ROWS", str(kept))
    monkeypatch.setenv("ARL_BENCH_PLOT", str(picture))
    monkeypatch.setattr(staleness, "train", None)
    found = staleness.run(bounds=(8,), variants=("naive",), seeds=(1, 2))
    assert found["met"]
    assert len(found["rows"]) == 2
    assert picture.read_bytes().startswith(b"\x89PNG")
