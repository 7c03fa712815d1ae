"""Agents that do not do the task are never paid, whatever they say and call."""

import itertools
import re

from arl_envs.tools.env import ToolsEnv
from arl_envs.tools.words import PRODUCTS

from tests.kit.cases import cases

from .kit import LEVELS, call, how_many, run, say, started, tasks

SAYINGS = [
    *("", "done", "Answer: done", "Answer: refused", "Answer: refused 417", "Answer: 349"),
    *("I cannot do that.", "Answer: I cannot do that", "yes", "Answer:", "Answer: done, refused"),
    "\n".join(f"Answer: {n}" for n in range(100, 1000)),
    "Answer: " + ", ".join(str(n) for n in range(100, 1000)),
    "Answer: done or refused or " + " or ".join(str(n) for n in range(100, 1000)),
]


def ended(env: ToolsEnv, text: str) -> float:
    """What the agent is paid that says it until somebody stops it."""
    for _ in range(5):
        step = run(env.step(say(text)))
        if step.terminated:
            return step.reward
    raise AssertionError("a conversation without end")


@how_many
@cases("level", LEVELS)
def test_nothing_done_is_never_paid(level, num):
    for task in tasks(level, num):
        request = task.data["request"]
        echoes = [request, f"Answer: {request}", f"Answer: {', '.join(numbers(request))}"]
        echoes += [f"Answer: refused {number}" for number in numbers(request)]
        for text in itertools.chain(SAYINGS, echoes):
            assert ended(started(task), text) == 0.0


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def explored(env: ToolsEnv, request: str, *, writes: bool) -> str:
    """Call every tool with everything the request and the answers so far have in them.

    Returns all that was said."""
    heard = request
    for _ in range(2):
        for tool in [each["function"] for each in env.tools]:
            is_write = not tool["name"].startswith(("find", "get", "list", "free"))
            if is_write and not writes:
                continue
            for arguments in plausible(tool["parameters"]["properties"], heard):
                (answer,) = run(env.step(call(tool["name"], **arguments))).observation
                heard += f"\n{answer['content']}"
                if len(heard) > 4000:
                    return heard
    return heard


def plausible(properties: dict, heard: str) -> list[dict]:
    """A few dozen ways to fill in the arguments."""
    words = re.findall(r"[A-Z][a-z]+ [A-Z][a-z]+|[A-Z][a-z]+", heard)[:6]
    things = [word for word in PRODUCTS if word in heard][:3]
    ids = list(dict.fromkeys(map(int, numbers(heard))))[:8]
    choices = [
        [*words, *things] if spec["type"] == "string" else ids if i == 0 else [1, 12, *ids[:2]]
        for i, spec in enumerate(properties.values())
    ]
    found = itertools.islice(itertools.product(*choices), 24)
    return [dict(zip(properties, values, strict=True)) for values in found]


@how_many
@cases("level", LEVELS)
def test_reading_everything_and_saying_everything_is_never_paid(level, num):
    for task in tasks(level, num):
        request = task.data["request"]
        env = started(task)
        heard = explored(env, request, writes=False)
        assert ended(env, f"{heard}\nAnswer: {', '.join(dict.fromkeys(numbers(heard)))}") == 0.0
        env = started(task)
        explored(env, request, writes=False)
        assert ended(env, "\n".join(f"Answer: {n}" for n in numbers(heard))) == 0.0


@how_many
@cases("level", LEVELS)
@cases("last", ["Answer: done", "numbers", "refused"])
def test_calling_everything_is_never_paid(level, num, last):
    for task in tasks(level, num):
        env = started(task)
        heard = explored(env, task.data["request"], writes=True)
        references = re.findall(r"ref (\d+)", heard)
        said = {
            "numbers": f"Answer: {', '.join(dict.fromkeys(numbers(heard)))}",
            "refused": f"Answer: refused {references[-1] if references else 0}",
        }.get(last, last)
        assert ended(env, said) == 0.0


def test_calling_every_tool_on_the_right_order_is_never_paid():
    for task in tasks(1, 60):
        env = started(task)
        (find, *_) = env.solve() or ()
        (found,) = run(env.step(find)).observation
        for tool in ("cancel_order", "ship_order", "refund_order"):
            run(env.step(call(tool, order=int(found["content"]))))
        assert ended(env, "Answer: done") == 0.0


@cases("text", ["x" * 10**6, "\0", "\ud800", "?" * 10**6, "Answer: " * 10**5])
def test_hostile_texts_are_answered(text):
    env = started(tasks(3, 1)[0])
    (answer,) = run(env.step(call("find_customer", name=text))).observation
    assert answer["content"].startswith("error:")
    assert run(env.step(say(text))).reward == 0.0
