"""The trial of a user's code: each mistake is found before engines start, with its place, and code
that works is left alone."""

import asyncio
import json
import linecache
import logging
import random
import sys
import textwrap
import time

import pytest
from arl_trial.scripted import call_of, value_of
from arl_trial.trial import depends_on_reply, limited, watched

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import run_interruptible
from tests.kit.cases import cases

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
HEAD = """\
import asyncio
import random
import time

import openai

from agentgym_rl import Agent, Env, Step, SyncEnv, ToolEnv, tool
"""
RESET = """
    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "Guess a digit."}], {}
"""
STEP = """
    async def step(self, action):
        return Step([], 1.0, True, False, {})
"""
RUN = """
class Theirs(Agent):
    async def run(self, env, client, *, model, task):
        messages, info = await env.reset()
"""
ASKS = "        reply = await client.chat.completions.create(model=model, messages=messages)\n"


def env(body: str) -> str:
    return f"class Theirs(Env):\n{body}"


def method(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text), "    ")


def returning(value: str) -> str:
    return f"    async def step(self, action):\n        return {value}\n"


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """Write the user's module, and return a function that tries it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    rows = [{"prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def tried(text: str, *, split="train", **keys) -> None:
        (tmp_path / "theirs.py").write_text(HEAD + text)
        sys.modules.pop("theirs", None)
        linecache.clearcache()
        config = load_config(None, {"env.id": "theirs:Theirs", "agent.id": "single_turn", **keys})

        async def main():
            async with watched(config, split):
                pass

        run_interruptible(main)

    yield tried
    sys.modules.pop("theirs", None)


OWN = {"env.id": "math", "agent.id": "theirs:Theirs"}
REWARD = {
    "env.id": "reward:theirs:score",
    "env.options.data": "rows.jsonl",
}
REWARDS = {
    "None": (
        "    row\n",
        "returned None, as without `return`; expected a number (theirs.py, line 9",
    ),
    "nan": ("    return float('nan')\n", "returned nan, expected finite numbers"),
    "list": ("    return [1.0]\n", "one completion at a time, not with a batch"),
    "text": ("    return 'good'\n", "returned 'good', expected a number"),
    "no reward": ("    return {'format': 1}\n", "a dictionary needs the key 'reward'"),
    "part": ("    return {'reward': 1, 'format': 'x'}\n", "a dictionary with 'format': 'x'"),
    "column": (
        "    return row['anwser'] in completion\n",
        "KeyError: 'anwser'; row has prompt, answer; did you mean answer? (theirs.py, line 10",
    ),
    "attribute": (
        "    return row.answer in completion\n",
        "AttributeError: 'dict' object has no attribute 'answer' (theirs.py, line 10, in score)\n"
        "    return row.answer in completion",
    ),
    "coroutine": ("    return asyncio.sleep(0) * 2\n", "needs `await` before it"),
}


@cases("body, said", REWARDS.values(), ids=list(REWARDS))
def test_a_reward_function_that_fails(theirs, body, said):
    with pytest.raises(ConfigError) as caught:
        theirs(f"\ndef score(completion, row):\n{body}", **REWARD)
    assert said in str(caught.value)


def test_a_reward_function_that_blocks_is_interrupted_at_its_limit(theirs):
    with pytest.raises(
        ConfigError, match=r"theirs\.py, line 10, in score has blocked(?s:.*)=thread"
    ):
        theirs(
            "\ndef score(completion, row):\n    time.sleep(60)\n",
            **{**REWARD, "env.options.timeout_s": 0.5},
        )


ENVS = {
    "sync": (env((RESET + STEP).replace("async ", "")), "derive the class from SyncEnv"),
    "sync step": (env(RESET + STEP.replace("async ", "")), "env.step: the method is `def`"),
    "async SyncEnv": (f"class Theirs(SyncEnv):\n{RESET}{STEP}", "a SyncEnv has an `async def`"),
    "four": (env(RESET + returning("[], 1.0, True, {}")), "env.step: got four values"),
    "text": (env(RESET + returning("'right', 1.0, True, False, {}")), "the observation is 'right'"),
    "forgotten await": (env(RESET + returning("asyncio.sleep(0)")), "`await` is missing"),
    "None": (env(RESET + returning("None")), "got None, as without `return`"),
    "messages alone": (
        env(RESET.replace(", {}", "") + STEP),
        "got the messages alone, without the info",
    ),
    "text of reset": (
        env(RESET.replace('[{"role": "user", "content": "Guess a digit."}]', '"Guess"') + STEP),
        "got the text 'Guess' in place of messages",
    ),
    "signature": (
        env(RESET.replace("self, *, seed=None, options=None", "self") + STEP),
        "argument 'seed'\nWrite `reset(self, *, seed=None, options=None)`",
    ),
    "content": (
        env(RESET.replace('"Guess a digit."', "self.close()") + STEP),
        "env.reset: a message cannot be sent to a model: Object of type coroutine",
    ),
    "raises in reset": (
        env(RESET.replace("return [", 'options["task"].data["question"]; return [') + STEP),
        "'question'; options['task'].data has no keys (theirs.py, line 11, in reset)",
    ),
    "raises in step": (
        env(RESET + returning("action.content")),
        'Messages are dictionaries: read a field as in action["content"]',
    ),
    "finish": (
        "class Theirs(ToolEnv):\n    def begin(self, task):\n        return 'Guess'\n"
        "    def finish(self, text):\n        self.text = text\n",
        "Theirs.finish returned None, expected a number, the reward, or a Step (theirs.py, line 11",
    ),
    "finish of two": (
        "class Theirs(ToolEnv):\n    def begin(self, task):\n        return 'Guess'\n"
        "    def finish(self, text):\n        return 1.0, True\n",
        "Theirs.finish returned (1.0, True), expected a number",
    ),
    "no role": (
        "class Theirs(ToolEnv):\n    def begin(self, task):\n        return [{'content': 'hi'}]\n",
        "env.reset: got what is no chat message: messages[0].role: got None, allowed: system, ",
    ),
    "unknown role": (
        env(RESET.replace('"user"', '"System"') + STEP),
        "messages[0].role: got 'System', allowed: system, developer, user, assistant, tool; "
        '`reset` returns messages such as {"role": "user", "content": "..."} (theirs.py, line 10, ',
    ),
    "number as content": (
        f"class Theirs(SyncEnv):\n{(RESET + STEP).replace('async ', '')}".replace(
            '"Guess a digit."', "42"
        ),
        "messages[0].content must be a string or an array; `reset` returns messages",
    ),
    "no message": (
        "class Theirs(ToolEnv):\n    def begin(self, task):\n        return []\n",
        "env.reset: got no message: a model needs at least one; `begin` returns messages such as",
    ),
    "role of step": (
        env(RESET + returning("Step([{'content': 'no'}], 0.0, False, False, {})")),
        "env.step: got what is no chat message: messages[0].role: got None",
    ),
    "begin": (
        "class Theirs(ToolEnv):\n    def begin(self, task):\n        return self.db.ask(task)\n",
        "AttributeError: 'Theirs' object has no attribute 'db' (theirs.py, line 10, in begin)",
    ),
}


@cases("text, said", ENVS.values(), ids=list(ENVS))
def test_an_environment_that_fails(theirs, text, said):
    with pytest.raises(ConfigError) as caught:
        theirs(text)
    assert said in str(caught.value)
    assert "theirs.py, line " in str(caught.value) or "\nWrite `reset(" in str(caught.value)
    assert "`arl check theirs:Theirs` tries the environment by itself" in str(caught.value)


SYNC = "openai.OpenAI(base_url=str(client.base_url), api_key=client.api_key, max_retries=0)"
AGENTS = {
    "raises": (
        f"{RUN}{ASKS}        reply.choice\n",
        "theirs.py, line 13, in run)\n    reply.choice",
    ),
    "sync run": (RUN.replace("async def", "def").replace("await ", ""), "write `async def run`"),
    "forgotten await": (f"{RUN}{ASKS.replace('await ', '')}        reply.choices\n", "`await`"),
    "no request": (RUN, "it made no request of the model\nUse the `client`"),
    "sync client": (
        f"{RUN}        {SYNC}.chat.completions.create(model=model, messages=messages)\n",
        "a client that is not async. It blocks the event loop, on which the endpoint runs",
    ),
    "other URL": (
        f"{RUN}        client = openai.AsyncOpenAI(base_url='http://127.0.0.1:9/v1', api_key='-', "
        f"max_retries=0)\n{ASKS}",
        "Use the `client` that run() gets",
    ),
    "text": (f"{RUN}{ASKS}        await env.step('4')\n", "agent theirs:Theirs: "),
    "messages": (
        f"{RUN}{ASKS}".replace("messages, info =", "messages ="),
        "messages[0].role: got None, allowed: system, developer, user, assistant, tool (theirs.py, "
        "line 12, in run)",
    ),
    "signature": (
        RUN.replace(", *, model, task", ""),
        "\nWrite `async def run(self, env, client, *, model, task)`",
    ),
}


@cases("text, said", AGENTS.values(), ids=list(AGENTS))
def test_an_agent_that_fails(theirs, text, said):
    with pytest.raises(ConfigError) as caught:
        theirs(text, **OWN)
    assert said in str(caught.value)


def test_an_agent_that_blocks_for_longer_than_the_trial_may_take(theirs):
    with pytest.raises(ConfigError, match=r"(?s)theirs\.py, line 12, in run has blocked for"):
        theirs(f"{RUN}        time.sleep(60)\n", **OWN, **{"rollout.trial_s": 1.0})


def test_a_trial_that_is_left_undone_says_so(theirs, caplog):
    text = env(RESET.replace("return", "await asyncio.sleep(60); return") + STEP)
    theirs(text, **{"agent.id": "react", "rollout.trial_s": 0.5})
    (told,) = (r.message for r in caplog.records if r.levelno == logging.WARNING)
    assert told.startswith("the trial of theirs:Theirs with react was left undone after 0.5 s: ")
    assert "--rollout.trial_s=3 gives it longer" in told


def test_time_without_a_cpu_does_not_count_in_a_trial():
    """The clock runs at half the speed of time at first, as on a busy machine."""
    begun_s = time.monotonic()

    def ran_s() -> float:
        passed_s = time.monotonic() - begun_s
        return max(passed_s / 2, passed_s - 0.5)

    async def main():
        with pytest.raises(TimeoutError):
            async with limited(0.5, ran_s):
                await asyncio.sleep(60)

    asyncio.run(main())
    assert ran_s() >= 0.49


NUMBER = "Step([], float(int(action['content'])), True, False, {})"
GROUPS = {
    "should_accept": ("members", "members[0].rewards", "'Trajectory' object has no attribute 'rew"),
    "group_reward": ("task, members", "[m.rewards for m in members]", "(theirs.py, line 9, in "),
    "group_reward of one": ("task, members", "1.0", "returned 1.0: expected a list of 8 rewards"),
}


@cases("key, parts", GROUPS.items(), ids=list(GROUPS))
def test_functions_of_groups_that_fail(theirs, key, parts):
    takes, returns, said = parts
    with pytest.raises(ConfigError) as caught:
        theirs(
            f"def function({takes}):\n    return {returns}\n",
            **{"env.id": "math", f"rollout.{key.split()[0]}": "theirs:function"},
        )
    assert said in str(caught.value)


FINE = {
    "guess": env(RESET + STEP),
    "sync": f"class Theirs(SyncEnv):\n{(RESET + STEP).replace('async ', '')}",
    "endless": env(RESET + returning("Step([], 0.0, False, False, {})")),
    "slow": env(RESET.replace("return", "await asyncio.sleep(60); return") + STEP),
    "one odd task": env(
        RESET.replace("return", 'assert options["task"].id[-1] != "0"; return') + STEP
    ),
    "needs a number": env(RESET + returning(NUMBER)),
    "sandboxed": env(
        f"    needs_sandboxes = True\n{RESET.replace('return', '1 / 0; return')}{STEP}"
    ),
}


@cases("text", FINE.values(), ids=list(FINE))
def test_an_environment_that_works(theirs, text):
    theirs(text, **{"agent.id": "react", "rollout.trial_s": 3.0})


def test_a_demanding_agent_gets_the_forms_that_it_demands(theirs):
    text = f"""{RUN}
        form = {{"type": "json_schema", "json_schema": {{"name": "a", "schema": {{
            "properties": {{"answer": {{"enum": [4, 5]}}}}, "required": ["answer"],
        }}}}}}
        asking = client.chat.completions.create
        reply = await asking(
            model=model, messages=messages, tools=env.tools, tool_choice="required"
        )
        assert reply.choices[0].message.tool_calls[0].function.name == "calculator", reply
        reply = await asking(model=model, messages=messages, response_format=form)
        assert reply.choices[0].message.content == '{{"answer": 4}}', reply
        stream = await asking(
            model=model, messages=messages, response_format=form, stream=True
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        raise SystemError(text)  # to be seen
"""
    with pytest.raises(ConfigError, match=r"SystemError: {.answer.: 4}"):
        theirs(text, **OWN)


def test_a_reply_of_the_wrong_form_is_only_a_warning(theirs, caplog):
    with caplog.at_level(logging.WARNING):
        theirs(f"{RUN}{ASKS}        [][0]\n", **OWN)
    (told,) = (text for text in caplog.messages if "in a trial" in text)
    assert "IndexError: list index out of range (theirs.py, line 13, in run)" in told
    assert not depends_on_reply("env.reset: KeyError: 'x' (a.py, line 1, in reset)", {})


NEVER_PAYS = """
class Theirs(ToolEnv):
    def begin(self, task):
        return "Guess a digit."
"""
FINISHES = "    def finish(self, text):\n        return 0.0\n"
TOOL = "    @tool\n    def look(self) -> int:\n        return 3\n"
ENDS = "    @tool\n    def say(self, digit: int) -> str:\n        return end(self)\n"
HELPER = "\ndef end(env):\n    env.end(1.0)\n    return 'right'\n"
SILENT = {
    "no step": (
        f"{RUN}{ASKS}",
        OWN,
        "theirs:Theirs (theirs.py, line 10, in Theirs.run) asked",
    ),
    "no finish": (
        NEVER_PAYS,
        {},
        "Theirs (theirs.py, line 9, in Theirs) never pays: it has no",
    ),
    "tools": (NEVER_PAYS + TOOL, {"agent.id": "react"}, "none of its tools calls self.end(reward)"),
}


def told_by_the_trial(caplog) -> list[str]:
    """Return its warnings; the watch over the event loop has others on a busy machine."""
    return [it.getMessage() for it in caplog.records if it.name == "arl_trial.trial"]


@cases("text, keys, said", SILENT.values(), ids=list(SILENT))
def test_what_can_never_be_rewarded_is_a_warning(theirs, caplog, text, keys, said):
    with caplog.at_level(logging.WARNING):
        theirs(text, **keys)
    (told,) = told_by_the_trial(caplog)
    assert said in told
    assert "so that every reward is 0 and nothing can be learned" in told
    assert "\n" not in told


REWARDED = {
    "finish": (NEVER_PAYS + FINISHES, {}),
    "end": (NEVER_PAYS + ENDS + HELPER, {"agent.id": "react"}),
    "group": (
        NEVER_PAYS + "\ndef function(task, members):\n    return [1.0] * len(members)\n",
        {"rollout.group_reward": "theirs:function"},
    ),
    "step": (f"{RUN}{ASKS}        await env.step({{'role': 'assistant', 'content': ''}})\n", OWN),
    "baseline": (RUN, {**OWN, "split": "eval"}),
}


@cases("text, keys", REWARDED.values(), ids=list(REWARDED))
def test_what_may_be_rewarded_is_no_warning(theirs, caplog, text, keys):
    with caplog.at_level(logging.WARNING):
        theirs(text, **keys)
    assert told_by_the_trial(caplog) == []


def test_a_baseline_without_a_model_may_be_evaluated(theirs):
    theirs(RUN, split="eval", **OWN)


def test_it_can_be_turned_off(theirs):
    theirs(env(RESET + returning("None")), **{"rollout.trial_s": 0})


def test_the_random_numbers_of_a_run_are_the_same(theirs):
    random.seed(7)
    theirs(env(RESET.replace("return [", "random.random(); return [") + STEP))
    found = random.random()
    random.seed(7)
    assert found == random.random()


def test_arguments_fit_the_schema_of_a_tool():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "c": {"type": ["string", "null"]},
            "d": {"type": "object", "properties": {"e": {"default": 2}}, "required": ["e"]},
            "f": {"type": "array"},
        },
        "required": ["a", "b", "c", "d"],
    }
    assert value_of(schema) == {"a": 1, "b": True, "c": "1", "d": {"e": 2}}
    call = call_of({"type": "function", "function": {"name": "look", "parameters": schema}})
    assert json.loads(call["function"]["arguments"]) == value_of(schema)


def test_the_watch_lasts_as_long_as_the_run(theirs):
    threads = []

    async def main():
        import threading

        config = load_config(None, {"env.id": "math"})
        async with watched(config, "train"):
            threads.append([t.name for t in threading.enumerate()])
        await asyncio.sleep(0.3)
        threads.append([t.name for t in threading.enumerate()])

    asyncio.run(main())
    assert ["block watch" in names for names in threads] == [True, False]


STUBBORN = """
        while True:
            try:
                await asyncio.sleep(60)
            except BaseException:
                pass
"""


@cases(
    "text, keys",
    [
        (f"{RUN}{STUBBORN}", OWN),
        (env(RESET.replace("        return", STUBBORN + "        return") + STEP), {}),
    ],
    ids=["agent", "reset"],
)
def test_code_that_swallows_its_cancellation_does_not_hold_up_the_trial(theirs, text, keys):
    begun_s = time.monotonic()
    theirs(text, **keys, **{"rollout.trial_s": 0.5})
    assert time.monotonic() - begun_s < 30
