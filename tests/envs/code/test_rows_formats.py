"""Rows of DeepCoder, LiveCodeBench, APPS and TACO, good ones and bad ones."""

import base64
import json
import pickle
import zlib
from decimal import Decimal
from typing import Any

import pytest
from arl_envs.code.problem import CallTest, TextTest
from arl_envs.code.rows.cases import PRINTED, ROUNDING

from agentgym_rl.gym.data import RowRefused
from tests.kit.cases import cases

from .rows_kit import passes, problem

GOOD, BAD = "a, b = map(int, input().split())\nprint(a + b)", "print(5)"
STDIN = [
    {"input": "2 3\n", "output": "5\n", "testtype": "stdin"},
    {"input": "10 -4\n", "output": "6\n", "testtype": "stdin"},
]
METHOD = "class Solution:\n    def rotate(self, items: List[int], by: int) -> List[int]:\n        "
ROTATE = METHOD + "return items[by:] + items[:by]"
ROTATIONS = [
    {"input": "[1, 2, 3]\n1", "output": "[2, 3, 1]", "testtype": "functional"},
    {"input": "[4]\n0", "output": "[4]", "testtype": "functional"},
]


def deepcoder(tests: Any, **more: Any) -> dict[str, Any]:
    return {
        "problem": "Do it.",
        "tests": tests if isinstance(tests, str) else json.dumps(tests),
    } | more


def apps(inputs: Any, outputs: Any, fn_name: str | None = None, **more: Any) -> dict[str, Any]:
    tests = {"inputs": inputs, "outputs": outputs, "fn_name": fn_name}
    return {"question": "Do it.", "input_output": json.dumps(tests), "starter_code": ""} | more


def livecodebench(public: Any, private: str, **more: Any) -> dict[str, Any]:
    shown = {"question_content": "Rotate it.", "public_test_cases": json.dumps(public)}
    return shown | {"private_test_cases": private, "starter_code": METHOD} | more


def pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def test_deepcoder_programs() -> None:
    made = problem("deepcoder", deepcoder(STDIN))
    assert made.entry == made.prelude == ""
    assert made.hidden[0] == TextTest("2 3\n", "5\n", PRINTED)
    assert made.statement.startswith("Do it.\n\nWrite a Python program that reads from standard")
    assert (passes(made, GOOD), passes(made, BAD)) == (True, False)


def test_deepcoder_functions_named_in_the_row() -> None:
    row = deepcoder(ROTATIONS, metadata={"func_name": "rotate"}, starter_code=METHOD)
    made = problem("deepcoder", row)
    assert made.hidden[0] == CallTest([[1, 2, 3], 1], [2, 3, 1], ROUNDING)
    assert "class `Solution` with the method `rotate`" in made.statement
    assert made.statement.endswith(f"```python\n{METHOD.rstrip()}\n```")
    assert (passes(made, ROTATE), passes(made, METHOD + "return items")) == (True, False)


def test_deepcoder_functions_named_in_each_test() -> None:
    cases = [case | {"metadata": {"func_name": "rotate"}} for case in ROTATIONS]
    made = problem("deepcoder", deepcoder(cases))
    assert made.statement.endswith(
        "Write a Python function `rotate` that takes 2 arguments and returns the answer."
    )
    assert passes(made, "def rotate(items, by): return items[by:] + items[:by]")


def test_deepcoder_with_tests_already_parsed() -> None:
    assert passes(problem("deepcoder", {"problem": "Do it.", "tests": STDIN}), GOOD)


def test_primeintellect_function_calls() -> None:
    case = {"type": "function_call", "fn_name": "double", "input": [4], "output": [8]}
    made = problem("deepcoder", deepcoder([case]))
    assert made.hidden == [CallTest([4], 8, ROUNDING)]


def test_taco_object_in_deepcoder() -> None:
    made = problem("deepcoder", deepcoder({"inputs": ["2 3\n"], "outputs": ["5\n"]}))
    assert passes(made, GOOD)


def test_apps_programs_with_lists_of_lines() -> None:
    made = problem("apps", apps([["2", "3"], "1\n1\n"], [["5"], "2\n"]))
    assert made.hidden[0] == TextTest("2\n3", "5", PRINTED)
    assert passes(made, "print(int(input()) + int(input()))")


def test_apps_calls_unwrap_outputs() -> None:
    made = problem("apps", apps([[3, "ab"], [0, "x"]], [["ababab"], [""]], "times"))
    assert [test.expected for test in made.hidden if isinstance(test, CallTest)] == ["ababab", ""]
    assert passes(made, "def times(n, s): return s * n")


@cases(
    "outputs, starter, expected",
    [
        ([[1], [2]], "", [1, 2]),
        ([[1], [2, 3]], "", [[1], [2, 3]]),
        ([[1], [2]], "def f(x) -> List[int]:", [[1], [2]]),
        ([[[1]], [[2, 3]]], "def f(x) -> list[int]:", [[1], [2, 3]]),
        ([1, 2], "", [1, 2]),
    ],
)
def test_when_outputs_are_unwrapped(outputs: Any, starter: str, expected: Any) -> None:
    made = problem("apps", apps([[0], [1]], outputs, "f", starter_code=starter))
    assert [test.expected for test in made.hidden if isinstance(test, CallTest)] == expected


def test_taco_calls_with_a_json_value_a_line() -> None:
    row = apps(['"a"\n[1, 2]', '"b"\n[]'], ["3", ["0"]], "f")
    made = problem("apps", row)
    assert made.hidden == [CallTest(["a", [1, 2]], 3, ROUNDING), CallTest(["b", []], 0, ROUNDING)]


def test_livecodebench_shows_public_tests_and_keeps_the_private_ones() -> None:
    more = [("[9, 8]\n1", "[8, 9]"), ("[7, 9, 8]\n2", "[8, 7, 9]")]
    hidden = [{"input": a, "output": b, "testtype": "functional"} for a, b in more]
    private = [*ROTATIONS, *hidden]
    row = livecodebench(ROTATIONS, json.dumps(private), metadata='{"func_name": "rotate"}')
    made = problem("livecodebench", row)
    assert made.hidden[0] == CallTest([[9, 8], 1], [8, 9], ROUNDING)
    assert len(made.hidden) == 2
    assert "`rotate([1, 2, 3], 1)` returns `[2, 3, 1]`" in made.statement
    assert passes(made, ROTATE)


def test_examples_that_the_statement_has_are_not_repeated() -> None:
    said = "Input: items = [1,2,3], by = 1. Output: [2,3,1]"
    row = livecodebench(ROTATIONS[:1], json.dumps(ROTATIONS), metadata='{"func_name": "rotate"}')
    made = problem("livecodebench", row | {"question_content": said})
    assert "Examples" not in made.statement


def test_public_tests_alone_decide_nothing() -> None:
    with pytest.raises(RowRefused, match="every test is shown"):
        problem("livecodebench", livecodebench(STDIN, "", starter_code=""))


@cases(
    "statement, kept",
    [
        ("Add them.\n\nInput\n1 2 \nOutput\n3", ["4 5", "6 7"]),
        ("Add 1 2 and the like.", ["1 2", "4 5", "6 7"]),  # no line of its own
    ],
)
def test_examples_in_the_words_decide_nothing(statement: str, kept: list[str]) -> None:
    tests = {"inputs": ["1 2\n", "4 5\n", "6 7\n"], "outputs": ["3", "9", "13"]}
    row = {"question": statement, "input_output": json.dumps(tests)}
    hidden = problem("apps", row).hidden
    assert [test.stdin.strip() for test in hidden if isinstance(test, TextTest)] == kept


@cases("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_livecodebench_private_tests_in_a_pickle(protocol: int) -> None:
    packed = pack(pickle.dumps(json.dumps(STDIN), protocol=protocol))
    made = problem("livecodebench", livecodebench([], packed, starter_code=""))
    assert passes(made, GOOD)


def test_livecodebench_private_tests_compressed_without_a_pickle() -> None:
    packed = pack(json.dumps(STDIN).encode())
    assert len(problem("livecodebench", livecodebench([], packed)).hidden) == 2


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


@cases("payload", [Bomb(), [Bomb(), "[]"], {"a": 1}, b"[]", ("[]", "[]")])
def test_a_pickle_is_never_loaded(payload: Any) -> None:
    packed = pack(pickle.dumps(payload))
    with pytest.raises(RowRefused, match="pickle"):
        problem("livecodebench", livecodebench(STDIN, packed))


@cases(
    "packed, reason",
    [
        ("!!!", "neither JSON nor base64"),
        (base64.b64encode(b"plain").decode(), "neither JSON nor base64"),
        (pack(b"")[:8], "neither JSON nor base64|cut off"),
        (base64.b64encode(zlib.compress(b"[]" * 99)[:-4]).decode(), "cut off"),
        (pack(b"nonsense"), "private_test_cases"),
        ("[{", "not JSON"),
        ('{"a": 1}', "expected a list of tests"),
    ],
)
def test_private_tests_that_cannot_be_unpacked(packed: str, reason: str) -> None:
    with pytest.raises(RowRefused, match=reason):
        problem("livecodebench", livecodebench(STDIN, packed))


HUGE = "1" * 50_001


@cases(
    "row, reason",
    [
        (deepcoder('[{"input": "1"'), "not JSON"),
        (deepcoder([]), "no tests"),
        (deepcoder("7"), "expected a list or an object"),
        (deepcoder(STDIN, problem=" "), "problem: got"),
        (deepcoder(STDIN, problem=None), "problem: got nothing"),
        (deepcoder(STDIN, problem="\ud800"), "surrogate"),
        (deepcoder([STDIN[0], ROTATIONS[0]]), "test kinds"),
        (deepcoder([{"input": "1", "output": "2"}]), "test kinds"),
        (deepcoder(["1"]), "expected input, output and testtype"),
        (deepcoder([{"input": "1", "testtype": "stdin"}]), "a test without output"),
        (deepcoder([STDIN[0] | {"output": 5}]), "output 1: got int, expected text"),
        (deepcoder([STDIN[0], STDIN[0] | {"output": "6"}]), "two outputs for one input"),
        (deepcoder([case | {"output": "\n"} for case in STDIN]), "expect no output"),
        (deepcoder(ROTATIONS), "function's name: got nothing"),
        (deepcoder(ROTATIONS, metadata={"func_name": "a b"}), "expected an identifier"),
        (deepcoder(ROTATIONS, metadata="{"), "metadata: '{' is not JSON"),
        (deepcoder({"inputs": ["1"]}), "inputs and outputs"),
    ],
)
def test_bad_deepcoder_rows_are_refused(row: Any, reason: str) -> None:
    with pytest.raises(RowRefused, match=reason):
        problem("deepcoder", row)


@cases(
    "row, reason",
    [
        (apps(["1"], ["2", "3"]), "1 inputs, but 2 outputs"),
        (apps([], []), "no tests"),
        (apps("1", "2"), "inputs and outputs: got '1' and '2'"),
        ({"question": "Do it.", "input_output": ""}, "no tests"),
        ({"question": "Do it.", "input_output": "{"}, "not JSON"),
        ({"question": 7, "input_output": "{}"}, "question: got int"),
        (apps([[1]], [2], "f()"), "expected an identifier"),
        (apps([7], [2], "f"), "expected the list of arguments"),
        (apps(["1 2"], ["2"], "f"), "input 1: '1 2' is not JSON"),
        (apps(["NaN"], ["2"], "f"), "NaN"),
        (apps([[float("nan")]], [2], "f"), "NaN"),
        (apps(["1e999"], ["2"], "f"), "inf is no finite number"),
        (apps([HUGE], ["2"], "f"), "not JSON.*50001 digits, at most 50000"),
        (apps([[{"1": "a"}]], [2], "f"), "may stand for a number"),
        (apps([[1]], ["\udc00"], "f"), "surrogate"),
        (apps([[1]], [None], "f"), "expect no output"),
        (apps(["[" * 9000], ["2"], "f"), "not JSON|deep"),
    ],
)
def test_bad_apps_rows_are_refused(row: Any, reason: str) -> None:
    with pytest.raises(RowRefused, match=reason):
        problem("apps", row)


@cases("number", [2**200, 2**20_000], ids=["200", "20000"])
def test_large_whole_numbers_are_kept_exactly(number: int) -> None:
    inputs = [f"{Decimal(number)}", "1"]
    made = problem("apps", apps(inputs, [f"{Decimal(number + 1)}", "2"], "f"))
    assert passes(made, "def f(x): return x + 1")
    assert not passes(made, "def f(x): return x + 2")


def test_the_longest_inputs_are_kept_in_their_own_order() -> None:
    inputs = ["1", "22", "333", "44", "5", "666"]
    made = problem("apps", apps(inputs, inputs), max_tests=3)
    assert [test.stdin for test in made.hidden if isinstance(test, TextTest)] == [
        "22",
        "333",
        "666",
    ]
    assert len(problem("apps", apps([f"{i}" for i in range(40)], ["0"] * 40)).hidden) == 15


def test_an_input_is_tested_once() -> None:
    assert len(problem("apps", apps(["1", "1 ", "2"], ["3", "3", "4"])).hidden) == 2


def test_problems_above_the_limit_are_refused() -> None:
    with pytest.raises(RowRefused, match="more than 100000"):
        problem("apps", apps(["1" * 100_000], ["2"]), max_bytes=100_000)


@cases(
    "said, seconds",
    [
        (None, 6),
        ("1 second", 6),
        ("10.5 seconds", 10.5),
        (8, 8),
        ("soon", 6),
        (1e9, 30),
        (True, 6),
        (10**400, 30),
        (-(10**400), 6),
        (float("nan"), 6),
        (float("inf"), 30),
        ("9" * 400, 30),
    ],
)
def test_time_limits_of_rows(said: Any, seconds: float) -> None:
    assert problem("apps", apps(["1"], ["2"], time_limit=said)).time_limit_s == seconds
