"""One message, one step: the environment as tools that have been answered already."""

import asyncio
import json

from arl_agents.bridge import EnvTools

from agentgym_rl.gym import Env, Step


class Echo(Env):
    """Answers all calls but those of `deaf`, then says something; ends with `bye`."""

    def __init__(self) -> None:
        self.actions: list[dict] = []

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "?"}], {}

    async def step(self, action):
        self.actions.append(action)
        calls = action.get("tool_calls") or []
        answers = [
            {"role": "tool", "tool_call_id": call["id"], "content": call["function"]["arguments"]}
            for call in calls
            if call["function"]["name"] != "deaf"
        ]
        more = {"role": "user", "content": [{"type": "text", "text": "And?"}]}
        return Step([*answers, more], 0.0, action["content"] == "bye", False, {})


def message(*names: str, content: str = "") -> dict:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": f"[{i}]"}}
        for i, name in enumerate(names)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def said(*messages: dict) -> tuple[Echo, EnvTools]:
    env = Echo()
    tools = EnvTools(env)

    async def say() -> None:
        for each in messages:
            await tools.say(each)

    asyncio.run(say())
    return env, tools


def test_all_calls_of_a_message_are_one_step():
    env, tools = said(message("f", "g"))
    assert env.actions == [message("f", "g")]
    assert [tools.answer("c1"), tools.answer("c0")] == ["[1]", "[0]"]
    assert (tools.num_steps, tools.ended) == (1, False)
    assert [each["role"] for each in tools.more] == ["user"]


def test_answers_are_those_to_the_last_message():
    _, tools = said(message("f", "g"), message("f"))
    assert tools.answer("c1").startswith("error: ")


def test_a_call_that_got_no_answer_has_an_error():
    _, tools = said(message("deaf"))
    assert tools.answer("c0") == "error: the environment did not answer this call"


def test_the_end_is_seen():
    assert said(message(content="bye"))[1].ended


def test_a_call_by_itself_is_a_message_by_itself():
    env = Echo()
    tools = EnvTools(env)

    async def call() -> list[str]:
        return [await tools.call("f", json.dumps({"a": n})) for n in range(2)]

    assert asyncio.run(call()) == ['{"a": 0}\n\nAnd?', '{"a": 1}\n\nAnd?']
    ids = [each["id"] for action in env.actions for each in action["tool_calls"]]
    assert len(set(ids)) == 2
