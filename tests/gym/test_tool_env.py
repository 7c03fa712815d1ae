"""ToolEnv: two tools in 25 lines, schemas from type hints, and calls however malformed."""

import asyncio
import errno
import json
import logging
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentgym_rl import Message, Step, Task, ToolEnv, tool
from agentgym_rl.core import ConfigError, EnvError, InfraError, SeededTasks
from agentgym_rl.gym import ToolError
from agentgym_rl.gym.tool_env import Tool, calls
from tests.kit.cases import cases


class Safe(ToolEnv):
    """What stands here is the whole of an environment with two tools."""

    @tool
    def look(self, digit: Annotated[int, Field(ge=1, le=2)]) -> int:
        """Look at a digit of the code.

        Args:
            digit: Which one.
        """
        return self.code[digit - 1]

    @tool
    async def open(self, code: str) -> str:
        """Open the safe."""
        if code != "".join(map(str, self.code)):
            raise ToolError("it does not open")
        self.end(1.0)
        return "it opens"

    def begin(self, task: Task) -> list[Message]:
        self.code = [self.random.randint(0, 9) for _ in range(2)]
        return [{"role": "user", "content": "Open the safe."}]


class Odd(ToolEnv):
    """Tools that fail, wait, and give back all sorts of things."""

    def begin(self, task: Task) -> list[Message]:
        self.running = self.most = 0
        return [{"role": "user", "content": "Go."}]

    @tool
    def crash(self) -> str:
        return str(1 // 0)

    @tool
    def leave(self) -> str:
        raise SystemExit(3)

    @tool
    async def cancel(self) -> str:
        raise asyncio.CancelledError

    @tool
    def infra(self) -> str:
        raise InfraError("the network is gone")

    @tool
    def lack(self, what: str) -> str:
        number = getattr(errno, what, None)
        raise OSError(number, "of the machine") if number else MemoryError

    @tool
    def stumble(self) -> str:
        raise ValueError("over it")

    @tool
    async def submit(self, reward: float, turns: int = 0) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.end(reward)
        return "thanks"

    @tool
    def give(self, what: str) -> Any:
        return {"none": None, "list": [1, "é"], "day": date(2026, 1, 2), "bad": "\ud800"}[what]

    @tool
    async def wait(self, turns: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(turns):
            await asyncio.sleep(0)
        self.running -= 1
        return turns

    async def finish(self, text: str) -> float | Step:
        return 0.5 if text == "half" else await self.more()

    async def more(self) -> Step:
        return Step([{"role": "user", "content": "go on"}], 0.0, False, False, {"x": 1})


def call(name: Any, arguments: Any = "{}", id: Any = "c") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def played(env: ToolEnv, *actions: Message) -> list[Step]:
    async def play() -> list[Step]:
        await env.reset(options={"task": Task("t", 5)})
        return [await env.step(action) for action in actions]

    return asyncio.run(play())


def told(env: ToolEnv, *calls: Any) -> list[str]:
    return [m["content"] for m in played(env, said(*calls))[0].observation]


def test_an_episode_of_the_smallest_environment():
    env = Safe()
    looks, opens = played(
        env,
        said(call("look", '{"digit": 1}', "a"), call("look", {"digit": 2}, "b")),
        said(call("open", json.dumps({"code": "".join(map(str, env_code()))}))),
    )
    assert [m["tool_call_id"] for m in looks.observation] == ["a", "b"]
    assert [m["content"] for m in looks.observation] == [str(d) for d in env_code()]
    assert (looks.reward, looks.terminated) == (0.0, False)
    assert (opens.observation[0]["content"], opens.reward) == ("it opens", 1.0)
    assert (opens.terminated, opens.info["stop_reason"]) == (True, "tool")
    assert opens.info["metrics"] == {"tool_calls": 3, "tool_errors": 0}


def env_code() -> list[int]:
    env = Safe()
    played(env)
    return env.code


def test_a_schema_comes_from_hints_and_docstring():
    assert Safe.tools[0]["function"] == {
        "name": "look",
        "description": "Look at a digit of the code.",
        "parameters": {
            "type": "object",
            "properties": {
                "digit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 2,
                    "description": "Which one.",
                }
            },
            "required": ["digit"],
        },
    }


class Color(Enum):
    RED = "red"


class Point(BaseModel):
    title: str
    y: float = 0.0


def paint(
    where: list[Point],
    color: Color = Color.RED,
    how: Literal["thin", "thick"] = "thin",
    note: str | None = None,
    when: date = date(2026, 1, 1),
) -> str:
    """Paint points
    on the wall.

    Much more could be said.

    Args:
        where (list): The points,
            all of them.
        note: For you.

    Returns:
        note: nothing of this is an argument.
    """
    return ""


def test_a_schema_of_everything():
    parameters = Tool.of(paint).spec["function"]["parameters"]
    assert Tool.of(paint).spec["function"]["description"] == "Paint points on the wall."
    assert parameters["required"] == ["where"]
    assert parameters["properties"]["where"]["description"] == "The points, all of them."
    assert parameters["properties"]["how"] == {"enum": ["thin", "thick"], "default": "thin"} | {
        "type": "string"
    }
    assert set(parameters["$defs"]["Point"]["properties"]) == {"title", "y"}
    assert json.loads(json.dumps(parameters)) == parameters


def test_arguments_become_the_types_of_the_hints():
    found = Tool.of(paint).read('{"where": [{"title": "a", "y": 1}], "color": "red", "note": null}')
    assert found["where"] == [Point(title="a", y=1)]
    assert (found["color"], found["how"], found["when"]) == (Color.RED, "thin", date(2026, 1, 1))


WRONG = {
    "string for a number": ('{"digit": "1"}', "digit: Input should be a valid integer"),
    "float for an integer": ('{"digit": 1.0}', "digit: Input should be a valid integer"),
    "bool for an integer": ('{"digit": true}', "digit: Input should be a valid integer"),
    "out of range": ('{"digit": 3}', "digit: Input should be less than or equal to 2"),
    "missing": ("{}", "digit: Missing required"),
    "empty": ("", "digit: Missing required"),
    "one too many": ('{"digit": 1, "x": 2}', "x: Unexpected keyword"),
    "no JSON": ("{", "arguments are no JSON object"),
    "no object": ("7", "arguments are no JSON object"),
    "lone surrogate": ('{"digit": "\ud800"}', "arguments are no JSON object"),
    "deep": ("[" * 200_000, "arguments are no JSON object"),
    "long": ('{"digit": "' + "x" * 10**6 + '"}', "digit: Input should be a valid integer"),
    "nul": ("\0", "arguments are no JSON object"),
    "nothing": (None, "arguments are no JSON object"),
    "bytes": ({"digit": b"1"}, "arguments are no JSON"),
}


@cases("case", WRONG)
def test_wrong_arguments_are_answered_with_what_is_expected(case):
    arguments, words = WRONG[case]
    (step,) = played(Safe(), said(call("look", arguments)))
    (text,) = [m["content"] for m in step.observation]
    assert text.startswith(f"error: {words}")
    assert len(text) < 420
    assert step.info["tool_errors"] == [text]
    assert step.info["metrics"] == {"tool_calls": 1, "tool_errors": 1}


def test_what_is_expected_is_said():
    (text,) = told(Safe(), call("look"))
    assert text.endswith("expected look(digit: integer)")


BAD_CALLS = [None, 7, "look", [], {}, {"function": None}, {"function": {"name": 3}}, call("x\0")]


@cases("bad", BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_what_is_no_call_is_answered(bad):
    (text,) = told(Safe(), bad)
    assert text.startswith("error:")


@cases("calls", ["look", 7, {"function": 1}, [[]], ({},)], ids=range(5))
def test_tool_calls_of_a_wrong_type_are_one_bad_call(calls):
    (step,) = played(Safe(), {"role": "assistant", "tool_calls": calls})
    assert len(step.observation) == len(step.info["tool_errors"]) == 1


def test_an_unknown_tool_is_told_the_known_ones():
    assert told(Safe(), call("shut")) == ["error: no such tool; expected one of: look, open"]


def test_no_more_than_so_many_calls_are_carried_out():
    answers = told(Safe(), *[call("look", '{"digit": 1}')] * 40)
    assert len(answers) == 40
    assert sum(text.startswith("error: more than 32 calls") for text in answers) == 8


@cases(
    "name, text",
    [
        ("crash", "error: ZeroDivisionError: integer division or modulo by zero"),
        ("leave", "error: SystemExit: 3"),
        ("cancel", "error: RuntimeError: the tool was cancelled by its own code"),
    ],
)
@cases("others", [0, 2])
def test_what_a_tool_raises_becomes_its_message(name, text, others):
    answers = told(Odd(), *[call("give", '{"what": "none"}')] * others, call(name))
    assert answers == ["null"] * others + [text]


@cases("others", [0, 2])
def test_infrastructure_failures_pass(others):
    with pytest.raises(InfraError, match="the network is gone"):
        told(Odd(), *[call("wait", '{"turns": 3}')] * others, call("infra"))


LACKS = ["EMFILE", "ENOMEM", "ENOSPC", "EIO", "EAGAIN", "ECONNRESET", "EPIPE", "memory"]


@cases("what", LACKS)
def test_what_the_machine_lacks_is_a_failure_of_infrastructure(what):
    with pytest.raises(InfraError, match=r"tool lack: \w*Error"):
        told(Odd(), call("lack", {"what": what}))


@cases("what", ["ENOENT", "EISDIR", "EACCES", "ETIMEDOUT", "EEXIST"])
def test_other_errors_of_the_system_may_come_of_the_arguments(what):
    (text,) = told(Odd(), call("lack", {"what": what}))
    assert text.startswith("error: ")


def test_a_tool_that_raises_is_warned_of_once(caplog):
    with caplog.at_level(logging.WARNING):
        told(Odd(), call("stumble"), call("stumble"), call("no_such"), call("give"))
    (record,) = caplog.records
    assert "tool 'stumble' raised ValueError" in record.getMessage()


class Unsendable(ToolEnv):
    def begin(self, task: Task) -> str:
        return "Go."

    @tool
    def give(self, kind: str) -> Any:
        found: dict[str, Any] = {"object": object(), "bytes": b"\xff", "rows": [{1, object()}]}
        found["circle"] = [found]
        return found[kind]


@cases("kind, of", [("object", "object"), ("bytes", "bytes"), ("rows", "list"), ("circle", "list")])
def test_a_result_that_is_no_json_names_the_tool_and_its_type(kind, of, caplog, monkeypatch):
    monkeypatch.setattr(calls, "_warned", set())
    with caplog.at_level(logging.WARNING):
        (text,) = told(Unsendable(), call("give", json.dumps({"kind": kind})))
    wanted = f"tool 'give' returned an object of type {of}, which is no JSON ("
    assert text.startswith(f"error: {wanted}")
    assert "return text, such as str(result)" in text
    (message,) = caplog.messages
    assert message.startswith(wanted)
    assert "Traceback" not in message


class Ends(Unsendable):
    result: Any = None

    def finish(self, text: str) -> Any:
        return self.result


@cases("result", [None, (1.0, True), ([], 1.0, True, False, {}), "1.0", [1.0], {"reward": 1.0}])
def test_a_finish_that_returns_no_number_is_refused(result):
    env = Ends()
    env.result = result
    with pytest.raises(EnvError, match=r"Ends.finish returned .*, expected a number, .*in Ends\.f"):
        played(env, {"role": "assistant", "content": "4"})


def submit(reward: float, turns: int = 0) -> dict[str, Any]:
    return call("submit", {"reward": reward, "turns": turns})


def test_the_first_end_in_the_order_of_the_calls_counts():
    (step,) = played(Odd(), said(submit(0.25, turns=9), submit(0.5), submit(1.0, turns=3)))
    assert (step.reward, step.terminated) == (0.25, True)
    (step,) = played(Odd(), said(submit(0.5), submit(1.0), call("crash")))
    assert step.reward == 0.5


def test_calls_after_the_end_are_answered_and_not_run():
    env = Odd()
    (step,) = played(env, said(submit(0.5), call("wait", {"turns": 1})))
    thanks, other = [m["content"] for m in step.observation]
    assert (thanks, other.startswith("error: not run")) == ("thanks", True)
    assert (env.most, step.info["metrics"]) == (0, {"tool_calls": 2, "tool_errors": 1})


def test_results_are_text():
    wanted = {"none": "null", "list": '[1, "é"]', "day": '"2026-01-02"', "bad": "?"}
    calls = [call("give", json.dumps({"what": what})) for what in wanted]
    assert told(Odd(), *calls) == list(wanted.values())


def test_waiting_tools_run_side_by_side_and_answer_in_order():
    env = Odd()
    calls = [call("wait", json.dumps({"turns": turns})) for turns in range(20, 0, -1)]
    assert told(env, *calls) == [str(turns) for turns in range(20, 0, -1)]
    assert env.most == env.max_concurrent_calls


def test_a_cancelled_step_stays_cancelled():
    async def play() -> None:
        env = Odd()
        await env.reset(options={"task": Task("t", 5)})
        many = [call("wait", '{"turns": 1000000}')] * 2
        async with asyncio.timeout(0.01):
            await env.step(said(*many))

    with pytest.raises(TimeoutError):
        asyncio.run(play())


def test_a_message_without_calls_goes_to_finish():
    go_on, last = played(Odd(), {"content": [{"type": "text", "text": "x"}]}, {"content": "half"})
    assert (go_on.observation[0]["content"], go_on.terminated, go_on.info["x"]) == ("go on", 0, 1)
    assert (last.reward, last.terminated, last.info["stop_reason"]) == (0.5, True, "answer")


def test_an_instance_may_offer_some_of_its_tools():
    env = Safe()
    env.use_tools(["open"])
    assert [each["function"]["name"] for each in env.tools] == ["open"]
    assert told(env, call("look", '{"digit": 1}')) == ["error: no such tool; expected one of: open"]
    with pytest.raises(ConfigError, match="shut"):
        env.use_tools(["shut"])
    assert len(Safe().tools) == 2


def test_tools_are_inherited_replaced_and_taken_away():
    class Other(Safe):
        @tool(name="peek", description="Peek.")
        def look(self, digit: int) -> int:
            return digit

        open = None  # pyright: ignore

    assert [(t["function"]["name"], t["function"]["description"]) for t in Other.tools] == [
        ("peek", "Peek.")
    ]
    assert told(Other(), call("peek", '{"digit": 9}')) == ["9"]


def test_a_tool_that_cannot_be_called_is_refused_at_once():
    def unhinted(x): ...

    def packed(*x: int): ...

    def misdocumented(x: int):
        """Do.

        Args:
            y: What?
        """

    for function, words in ((unhinted, "no type hint"), (packed, "by name"), (misdocumented, "y")):
        with pytest.raises(TypeError, match=words):
            Tool.of(function)


def test_a_method_that_cannot_be_a_tool_is_refused_with_its_name_and_parameter():
    def unknown(self, day: int, when): ...

    def unknown_result(self, day: int): ...

    def broken(self, ids): ...

    unknown.__annotations__["when"] = "datetime"  # as of a name that is not imported
    unknown_result.__annotations__["return"] = "datetime"
    broken.__annotations__["ids"] = "list of int"

    def handed(self, lock: asyncio.Lock): ...

    def selfless(day: int): ...

    for function, words in (
        (unknown, "tool unknown: parameter when has the type hint 'datetime': .* import or define"),
        (unknown_result, "tool unknown_result: the result has the type hint 'datetime'"),
        (broken, "tool broken: parameter ids has the type hint 'list of int': .* such as list"),
        (handed, "tool handed: no JSON for {'lock': <class 'asyncio.locks.Lock'>}"),
        (selfless, "tool selfless: write `self` as its first parameter"),
        (lambda: 0, "write `self` as its first parameter"),
    ):
        with pytest.raises(TypeError, match=words):
            Tool.of(function, method=True)
    with pytest.raises(TypeError, match=r"@tool: got a property, expected a method"):
        tool(property(unknown))  # type: ignore[type-var]


class Plain(ToolEnv):
    """Tools that do not need the instance, with the two decorators in either order."""

    def begin(self, task: Task) -> str:
        return "Go."

    @tool
    @staticmethod
    def above(x: int) -> int:
        return x

    @staticmethod
    @tool
    async def below(x: int) -> int:
        return x

    @tool(name="of_class")
    @classmethod
    def above_class(cls, x: int) -> str:
        return f"{cls.__name__} {x}"

    @classmethod
    @tool
    def below_class(cls, x: int) -> str:
        return f"{cls.__name__} {x}"


def test_static_and_class_methods_are_tools():
    names = [each["function"]["name"] for each in Plain.tools]
    assert names == ["above", "below", "of_class", "below_class"]
    calls = [call(name, '{"x": 3}') for name in names]
    assert told(Plain(), *calls) == ["3", "3", "Plain 3", "Plain 3"]
    assert Plain.above(3) == 3


def test_two_tools_of_one_name_are_refused_at_once():
    with pytest.raises(TypeError, match="methods look and again are both the tool 'look'"):

        class Twice(Safe):
            @tool(name="look")
            def again(self) -> str:
                return ""


class Served(ToolEnv):
    needs_sandboxes = uses_verifier = True

    def begin(self, task: Task) -> list[Message]:
        self.found = (self.sandboxes, self.verifier)
        return []


def test_sandboxes_and_verifier_are_there_when_it_begins():
    env = Served()
    asyncio.run(env.reset(options={"sandboxes": "S", "verifier": "V"}))
    assert env.found == ("S", "V")
    asyncio.run(env.reset(options={"sandboxes": "S"}))  # who plays without a pool leaves it out
    assert env.found == ("S", None)
    with pytest.raises(EnvError, match="expected a started SandboxBackend"):
        asyncio.run(env.reset())


def test_resets_are_seeded():
    async def code(**reset: Any) -> list[int]:
        env = Safe()
        await env.reset(**reset)
        return env.code

    task = SeededTasks("train", seed=7)[0]
    assert asyncio.run(code(seed=7)) == asyncio.run(code(options={"task": task}))
    assert len({tuple(asyncio.run(code(seed=seed))) for seed in range(20)}) > 5


def test_misuse_is_the_environments_error():
    env = Safe()
    for options in ({"speed": 1}, {"task": "t"}):
        with pytest.raises(EnvError):
            asyncio.run(env.reset(options=options))
    with pytest.raises(EnvError, match="call reset first"):
        asyncio.run(env.step({"content": "x"}))
    played(env, {"content": "the end"})
    with pytest.raises(EnvError, match="call reset first"):
        asyncio.run(env.step({"content": "x"}))
