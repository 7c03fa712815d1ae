"""Frameworks that force the form of every turn: pydantic-ai, smolagents, and `response_format`."""

import importlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from arl_envs.math.env import MathEnv
from arl_envs.math.oracle import solve

from agentgym_rl.core import Outcome
from agentgym_rl.engines.scripted import Say
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gym import EnvSpec, make_agent
from agentgym_rl.gym.specs import wrapped
from agentgym_rl.models import resolve_model
from tests.kit.cases import cases
from tests.kit.scripted import Scripted

pytestmark = [
    pytest.mark.slow,  # they take seconds to import
    pytest.mark.usefixtures("collected"),
    pytest.mark.filterwarnings("ignore"),  # those of frameworks are not ours to mend
]
SCRIPTS = Path(__file__).parents[2] / "scripts" / "tiny_model"
# By its path: the folder has modules of the same names as tests.
_SPEC = importlib.util.spec_from_file_location("agents_forms", SCRIPTS / "agents_forms.py")
assert _SPEC is not None
assert _SPEC.loader is not None
forms = sys.modules["agents_forms"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(forms)
Form = forms.Form

AGENTS = {
    "pydantic_ai": "pydantic_ai_agent:Typed",
    "smolagents": "smolagents_agent:Calling",
    "response_format": "structured_agent:Structured",
}


TASKS = MathEnv.task_source("train", seed=7)
TASK = next(TASKS[i] for i in range(99) if len(solve(TASKS[i])) == 3)
"""A problem of two steps."""


class Given(MathEnv):
    """Asks this problem, whatever the task."""

    async def reset(self, *, seed=None, options=None):
        return await super().reset(seed=seed, options={"task": TASK})


@pytest.fixture(scope="module")
def scripted():
    return Scripted(ChatFormat.load(resolve_model("bundled/agents")))


@pytest.fixture
def play(need, scripted):
    def played(name, replies, *, env=Given, **options):
        if name != "response_format":
            need(name)
        return scripted.play(make_agent(AGENTS[name]), replies, env=env, **options)

    return played


def said(message) -> str:
    """A message as the model writes it."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    texts = [
        f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>'
        for call in calls
    ]
    return (message.get("content") or "") + "".join(texts)


def right(form: Form) -> list[str]:
    """The replies of a model that is right."""
    plan = [call["tool_calls"][0]["function"]["arguments"] for call in solve(TASK)[:-1]]
    work = [form.work(json.loads(text)["expression"], number=i) for i, text in enumerate(plan)]
    return [*map(said, work), said(form.answer(TASK.data["answer"], turn=2))]


@cases("name", AGENTS)
def test_the_model_was_warmed_up_on_the_prompts_that_arrive(name, play):
    form = Form(name)
    played = play(name, right(form))
    system, user = played.messages[:2]
    content = system["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    assert text == form.system
    assert [*played.tools] == [*form.tools]
    asked = user["content"] if isinstance(user["content"], str) else user["content"][0]["text"]
    assert asked.startswith("New task:\n") == (name == "smolagents")


@cases("name", AGENTS)
def test_a_right_answer_is_rewarded(name, play):
    played = play(name, right(Form(name)))
    assert (played.outcome, played.reward, played.error) == (Outcome.COMPLETED, 1.0, "")
    assert played.num_turns == played.metrics["constrained_turns"] == 3
    rewritten = name == "smolagents"  # which sends its own account of what the model said
    assert played.metrics["forks"] == (2 if rewritten else 0)
    assert len(played.rows) == (3 if rewritten else 1)


@cases("name", AGENTS)
def test_the_environments_limit_of_turns_ends_it(name, play):
    limited = lambda: wrapped(Given(), EnvSpec(id="e", entry_point="", max_turns=2))  # noqa: E731
    played = play(name, right(Form(name))[:1] * 9, env=limited)
    assert (played.outcome, played.num_turns, played.error) == (Outcome.TRUNCATED, 2, "")


@cases("name", AGENTS)
def test_a_real_model_plays_it(name, need, small):
    if name != "response_format":
        need(name)
    for each in small.play(make_agent(AGENTS[name]), "math", episodes=4, model="bundled/agents"):
        assert (each.error, each.outcome) == ("", Outcome.COMPLETED)
        assert each.metrics["constrained_turns"] == each.num_turns
        assert each.metrics["unmatched_turns"] == 0


def test_the_thread_of_smolagents_ends_with_its_episode(need, play, scripted, monkeypatch):
    need("smolagents")
    threads = ThreadPoolExecutor(1)
    monkeypatch.setattr(importlib.import_module("smolagents_agent"), "THREADS", threads)
    slow = Say(scripted.chat.encode("x" * 400), delay_s=0.5)  # minutes
    began = time.monotonic()
    played = play("smolagents", [], script=lambda _: slow, episode_s=1.5)
    assert played.outcome is Outcome.ABORTED
    threads.shutdown()
    assert time.monotonic() - began < 20  # its request alone may take 25
