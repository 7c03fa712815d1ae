"""A judge that LiteLLM reaches, through the real LiteLLM, in whatever Python has it."""

import json
import subprocess

import pytest
from test_litellm import HERE, IN_TREE, python

from tests.kit.cases import cases

__all__ = ["python"]

pytestmark = pytest.mark.slow
SECRET = "sk-secret-of-the-environment"
CALL_USD = 1e-6 * (100 * 0.15 + 10 * 0.6)
"""The price of a call by LiteLLM's table for gpt-4o-mini."""


@pytest.fixture(scope="module")
def found(python) -> dict:
    program = [python, str(HERE / "judge_scenarios.py")]
    environment = IN_TREE | {"OPENAI_API_KEY": SECRET}
    ran = subprocess.run(program, env=environment, capture_output=True, timeout=280)
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    return json.loads(ran.stdout)  # LiteLLM has printed nothing


def test_a_rubric_is_asked_and_its_cost_is_litellm_s(found):
    of = found["rubric"]["found"]
    assert (of["right"], of["brief"]) == (0.8, 0.2)
    assert of["reward"] == pytest.approx((2 * 0.8 + 0.2) / 3)
    assert of["judge_usd"] == pytest.approx(2 * CALL_USD)
    for request in found["rubric"]["requests"]:
        assert request["response_format"]["json_schema"]["schema"]["required"] == ["score"]
        assert (request["model"], request["temperature"]) == ("gpt-4o-mini", 0.0)


def test_pairs_are_compared_in_both_orders(found):
    """The judge prefers whatever comes first, so nobody wins."""
    ranked = found["rank"]["found"]
    assert [one["reward"] for one in ranked] == [0.5] * 3
    assert sum(one["judge_calls"] for one in ranked) == len(found["rank"]["requests"]) == 6
    assert sum(one["judge_usd"] for one in ranked) == pytest.approx(6 * CALL_USD)


def test_a_panel_may_have_models_of_several_providers(found):
    of = found["panel"]["found"]
    assert of["reward"] == pytest.approx(0.6)
    assert of["judge_calls"] == 2
    claude = 1e-6 * (20 * 3 + 80 * 0.3 + 5 * 15)
    assert of["judge_usd"] == pytest.approx(CALL_USD + claude)


def test_a_verdict_is_paid_once(found):
    first, second = found["cached"]["found"]
    assert len(found["cached"]["requests"]) == 2
    assert first["reward"] == second["reward"]
    assert (second["judge_calls"], second["judge_cached"]) == (0, 2)
    assert "judge_usd" not in second


def test_a_price_that_nobody_knows_is_not_0(found):
    """LiteLLM says 0 of models that its table has without a price."""
    assert "judge_usd" not in found["unpriced"]["found"]
    assert "judge_usd" not in found["priced at 0"]["found"]
    assert found["own prices"]["found"]["judge_usd"] == pytest.approx(2 * 120e-6)


@cases(
    "name, error, said, requests",
    [
        ("no verdict", "NoVerdict", "no verdict in 2 replies", 8),
        ("hangs", "InfraError", "no answer within 0.2 s", 2),
        ("down", "InfraError", "it answered 503", 2),
        ("refused", "EnvError", "it answered 401", 2),
    ],
)
def test_whose_fault_a_failure_is(found, name, error, said, requests):
    """Two criteria are asked at once; each request is repeated by the judge alone, if at all, and
    a neutral text is judged before one is blamed."""
    of = found[name]
    assert (of["error"], said in of["said"]) == (error, True), of
    assert len(of["requests"]) <= requests, of


def test_a_failure_that_passes_is_asked_again(found):
    of = found["down for a while"]
    assert of["found"]["right"] == 0.8
    assert len(of["requests"]) == 4


def test_a_key_that_litellm_reads_is_in_no_error(found):
    assert SECRET not in json.dumps(found["refused"])
    assert "[the API key]" in found["refused"]["said"]


def test_the_import_of_litellm_does_not_keep_the_loop(found):
    assert found["beside the loop"]["found"] is True
