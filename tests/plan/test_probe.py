"""The speeds of a model, measured on this machine without a run."""

import json

import numpy as np
import pytest
from arl_embedded.section import EmbeddedEngineConfig
from arl_plan import probe as module
from arl_plan.probe import Probe, _fitted, _shard
from arl_plan.rates import load_rates

from agentgym_rl.cli import main as cli
from agentgym_rl.config import TrainerConfig
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases

CPU = ["--engine.device=cpu", "--trainer.device=cpu", "--steps=2", "--no-search"]
SMALL = ["--rollout.groups_per_batch=2", "--rollout.group_size=2"]


@pytest.fixture
def arl(capsys, tmp_path, monkeypatch):
    """(exit code, stdout, stderr) of `arl plan`, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def arl(*argv):
        with pytest.raises(SystemExit) as end:
            cli.main(["plan", *CPU, *SMALL, *argv])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return arl


def test_a_plan_measures_the_model_once(arl, tmp_path, monkeypatch):
    kept = tmp_path / "rates.toml"
    code, _, err = arl(f"--write-rates={kept}")
    assert code == 0
    assert [err.count(text) for text in ("engine: ", "trainer: ", "weights: ")] == [4, 1, 1]
    found = load_rates(kept)
    assert found.engine.step_s + found.engine.step_s_per_request > 0
    assert found.engine.prefill_s + found.engine.prefill_s_per_token > 0
    # Each by itself: how they compare depends on what else the machine did in that second.
    assert min(found.trainer.train_s_per_token, found.trainer.forward_s_per_token) > 0
    assert found.trainer.optimizer_s > 0
    assert min(found.weights.stage_s, found.weights.pause_s) > 0
    assert found.cores is not None
    monkeypatch.setattr(module, "_measure", None)  # would fail
    code, out, err = arl("--json")
    again = json.loads(out)
    assert code == 0
    assert "measured before" in err
    assert again["rates"]["engine"] == found.engine.model_dump()
    assert again["prediction"]["episodes_per_s"] > 0


def test_another_setting_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = {"folder": BUNDLED, "make_stepper": None, "say": print}
    one, two = EmbeddedEngineConfig(), EmbeddedEngineConfig(num_threads=2)
    files = [
        Probe(engine=one, trainer=TrainerConfig(), **asked).kept_file(),
        Probe(engine=one, trainer=TrainerConfig(max_restarts=9), **asked).kept_file(),
        Probe(engine=two, trainer=TrainerConfig(), **asked).kept_file(),
        Probe(engine=one, trainer=TrainerConfig(num_threads=2), **asked).kept_file(),
    ]
    assert files[0] == files[1]
    assert len(set(files)) == 3


@cases(
    "factors",
    [(0.01, 0.002, 1e-5), (0.0, 0.002, 0.0), (0.05, 0.0, 1e-5), (0.02, 0.0, 0.0)],
)
def test_rates_are_those_that_made_the_times(factors):
    terms = [(1.0, n, n * context) for n, context in module._POINTS]
    seconds = [float(np.dot(factors, term)) for term in terms]
    assert _fitted(terms, seconds) == pytest.approx(list(factors), rel=1e-6, abs=1e-9)


def test_no_rate_is_negative():
    found = _fitted([(1.0, 1), (1.0, 2), (1.0, 3)], [3.0, 2.0, 1.5])
    assert min(found) >= 0


def test_the_batch_of_a_probe_teaches():
    shard = _shard(0, 4, vocab=50)
    assert shard.rewards == [0.0, 1.0, 0.0, 1.0]
    assert shard.group_ids == ["g0", "g0", "g1", "g1"]
    trained = [row.row.num_trained for rows in shard.minibatches for row in rows]
    assert sum(trained) == shard.num_trained_tokens
