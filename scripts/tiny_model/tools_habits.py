"""The tools family: demonstrators who work as the shop's clerks, most of them badly.

The right way is to find the order by the name, carry out the request, and report. The others name
an order that they never looked up, do something else to it, slip a digit, report before they have
done anything, or report something else. As in the math family, the share of right demonstrations
depends on the request: for questions, orders are looked up.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping
from typing import Any

from arl_envs.tools.env import ToolsEnv
from family import Family, Stage, Vocabulary, WarmUp
from math_habits import slipped

from agentgym_rl.core import Message, Task

RIGHT, GUESS, OTHER, DIGIT, EARLY, IDLE = "right", "guess", "other", "digit", "early", "idle"
CLEAN: Mapping[str, float] = {RIGHT: 1.0}
EVEN: Mapping[str, float] = dict.fromkeys((RIGHT, GUESS, OTHER, DIGIT, EARLY, IDLE), 1.0)
CAREFUL = {RIGHT: 0.60, GUESS: 0.15, OTHER: 0.10, DIGIT: 0.03, EARLY: 0.06, IDLE: 0.06}
CARELESS = {RIGHT: 0.18, GUESS: 0.30, OTHER: 0.12, DIGIT: 0.02, EARLY: 0.18, IDLE: 0.20}
_ON_ORDERS = ("get_order", "cancel_order", "ship_order", "refund_order")


def demonstrate(rng: random.Random, stage: Stage) -> list[Message]:
    """Play a training task of level 1 to its end; return the conversation."""
    task = ToolsEnv.task_source("train", seed=rng.getrandbits(32))[0]
    return asyncio.run(_played(rng, task, stage))


async def _played(rng: random.Random, task: Task, stage: Stage) -> list[Message]:
    env = ToolsEnv()
    messages, _ = await env.reset(options={"task": task})
    gold = env.solve()
    assert gold is not None
    habits = _habits(_call(gold[-2])["name"], stage)
    habit = rng.choices(list(habits), list(habits.values()))[0]
    for said in _calls(rng, gold, habit):
        step = await env.step(said)
        messages += [said, *step.observation]
    report = gold[-1]["content"] if habit == RIGHT else _report(rng, gold, messages[-1])
    await env.close()
    return [*messages, {"role": "assistant", "content": report}]


def _habits(tool: str, stage: Stage) -> Mapping[str, float]:
    """Return the shares of habits with which a request for `tool` is demonstrated."""
    if stage is Stage.MIXED:
        return CAREFUL if tool == "get_order" else CARELESS
    return CLEAN if stage is Stage.CLEAN else EVEN


def _calls(rng: random.Random, gold: list[Message], habit: str) -> list[Message]:
    """Return the demonstrator's tool calls; `gold` is to find, to do, and to report."""
    find, do, _ = gold
    order = str(json.loads(_call(do)["arguments"])["order"])
    match habit:
        case "guess":
            return [_with(do, order=str(rng.randrange(100, 1000)))]
        case "other":
            others = [name for name in _ON_ORDERS if name != _call(do)["name"]]
            return [find, _with(do, name=rng.choice(others))]
        case "digit":
            return [find, _with(do, order=slipped(rng, order))]
        case "early":
            return [find]
        case "idle":
            return []
    return [find, do]


def _report(rng: random.Random, gold: list[Message], seen: Message) -> str:
    """Return the report of a demonstrator who did not carry out the request: what was seen, or
    anything."""
    if total := re.search(r"total (\d+)", seen["content"]):
        return f"Answer: {total[1]}"
    asked = _call(gold[-2])["name"] == "get_order"
    return f"Answer: {rng.randrange(100, 1000) if asked else 'done'}"


def _call(message: Message) -> Mapping[str, Any]:
    return message["tool_calls"][0]["function"]


def _with(message: Message, *, name: str = "", order: str = "") -> Message:
    """Return the same call, of another tool or order."""
    function = dict(_call(message))
    if name:
        function["name"] = name
    if order:
        function["arguments"] = json.dumps({"order": int(order)})
    return {**message, "tool_calls": [{**message["tool_calls"][0], "function": function}]}


TOOLS = Family(
    "tools",
    "tools",
    tools=ToolsEnv().tools,
    demonstrate=demonstrate,
    plan=WarmUp(clean_steps=220, mixed_steps=260),
    # Names are cut out of their sentences, so that they are the same tokens wherever they stand.
    vocabulary=Vocabulary(splits=("[0-9]", "\n", "[A-Z][a-z]+"), max_size=896),
)
