"""Several episodes of each task: pass@k, tokens, and what they cost."""

import pytest
from arl_endpoints.session import StreamedMessage

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases
from tests.kit.someones_eval import evaluate
from tests.kit.someones_model import SomeonesModel, gold, nonsense

pytestmark = pytest.mark.usefixtures("key")


def every_other_time(num_tasks: int):
    """The perfect player, whose every other conversation is nonsense."""
    say, asked = gold(num_tasks), {}

    def sometimes(messages):
        question = messages[1]["content"]
        if len(messages) == 2:
            asked[question] = asked.get(question, 0) + 1
        return (say if asked[question] % 2 else nonsense)(messages)

    return sometimes


def test_each_task_is_played_so_often():
    model = SomeonesModel(every_other_time(4))
    more = {"eval__samples_per_task": 4, "eval__max_concurrent": 1}
    result = evaluate(None, model=model, engine__send="seed", **more)
    assert (result["reward"], result["num_tasks"], result["num_episodes"]) == (0.5, 4, 16)
    values = {k: found["value"] for k, found in result["pass_at"].items()}
    assert values == {"1": 0.5, "2": pytest.approx(5 / 6), "4": 1.0}
    assert result["pass_at"]["4"]["ci"] == pytest.approx((0.5101, 1.0), abs=1e-4)
    first = [r["seed"] for r in model.requests if len(r["messages"]) == 2]
    assert len(set(first)) == 16


def test_the_first_sample_is_the_one_there_was():
    """More samples do not change the first one: its seeds stay."""
    alone, several = SomeonesModel(nonsense), SomeonesModel(nonsense)
    for model, samples in ((alone, 1), (several, 2)):
        evaluate(None, model=model, engine__send="seed", eval__samples_per_task=samples)
    assert {r["seed"] for r in alone.requests} < {r["seed"] for r in several.requests}


def test_the_ks_can_be_chosen():
    more = {"eval__samples_per_task": 3, "eval__pass_at": "1,3", "eval__success_reward": 0.0}
    result = evaluate(nonsense, **more)
    assert {k: found["value"] for k, found in result["pass_at"].items()} == {"1": 1.0, "3": 1.0}


@cases(
    "overrides, said",
    [
        ({"eval.pass_at": "2"}, r"pass_at \[2\] has a k outside 1..samples_per_task \(1\)"),
        ({"eval.pass_at": "1,1"}, "names a k twice"),
        ({"eval.price_prompt": 1}, "price_prompt and price_completion together"),
        ({"eval.price_cached": 1}, "price_cached needs price_prompt"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, said):
    with pytest.raises(ConfigError, match=said):
        load_config(overrides=overrides)


PRICES = {"eval__price_prompt": 2.0, "eval__price_completion": 10.0}


def test_a_cost_is_reckoned_with_the_prices_given():
    result = evaluate(nonsense, **PRICES)
    assert result["cost_usd"] == pytest.approx(1e-6 * (4 * 7 * 2 + 4 * 3 * 10))
    assert result["cached_tokens"] is None


def test_cached_tokens_have_a_price_of_their_own():
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    model = SomeonesModel(nonsense, usage={**usage, "prompt_tokens_details": {"cached_tokens": 5}})
    result = evaluate(None, model=model, eval__price_cached=0.5, **PRICES)
    assert result["cached_tokens"] == 20
    assert result["cost_usd"] == pytest.approx(1e-6 * 4 * (2 * 2 + 5 * 0.5 + 3 * 10))


def test_no_cost_is_better_than_a_wrong_one():
    assert evaluate(nonsense)["cost_usd"] is None
    assert evaluate(None, model=SomeonesModel(nonsense, usage=None), **PRICES)["cost_usd"] is None


def test_a_stream_adds_up_to_its_message():
    message = StreamedMessage()
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}
    more = {"index": 0, "function": {"arguments": ": 1}"}}
    deltas = [{"reasoning_content": "Hm"}, {"reasoning_content": "."}, {"content": "So"}]
    for delta in (*deltas, {"tool_calls": [call]}, {"tool_calls": [more]}):
        message.add({"choices": [{"delta": delta, "finish_reason": None}]})
    whole = message.whole()
    assert (whole["reasoning_content"], whole["content"]) == ("Hm.", "So")
    assert whole["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
