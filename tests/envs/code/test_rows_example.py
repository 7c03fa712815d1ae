"""Tests that a statement shows, and numbers of its prose that show none."""

from typing import Any

from arl_envs.code.problem import CallTest, TextTest
from arl_envs.code.rows.example import is_example

from tests.kit.cases import cases

from .rows_kit import problem


@cases(
    "statement, args, expected",
    [
        ("Add.\nInput: nums = [3,4]\nOutput: 7", [[3, 4]], 7),
        ("Input: (3, 4)\nOutput: 7", [(3, 4)], 7),
        ("`f(x = 3, y = 4)` returns `7`.", [3, 4], 7),
        ("f(x=3, y=-4) returns -1.", [3, -4], -1),
        ("**Input:** n = 3, k = 4\n**Output:** 7\n", [3, 4], 7),
        (">>> f(n = 3)\n7", [3], 7),
        ("f([1, 2], 'a') -> [2, 1]", [[1, 2], "a"], [2, 1]),
        ("Input: ok = true, x = null\nOutput: false", [True, None], False),
        ("Input: s = “ab c”\nOutput: “c ba”", ["ab c"], "c ba"),
        ('Input: s = "abc"\nOutput: cba', ["abc"], "cba"),
        ("Input: x = 0.5\nOutput: 1.25", [0.5], 1.25),
        ("So F(3,4) is it.", [3, 4], 0),  # the call alone is enough
        ("Of {'a': 1} the answer should be {1: 'a'}", [{"a": 1}], {1: "a"}),
    ],
)
def test_calls_that_are_shown(statement: str, args: list[Any], expected: Any) -> None:
    assert is_example(CallTest(args, expected), statement, "f")


@cases(
    "statement, args, expected",
    [
        ("There are up to 3 items of at most 4 grams; take them modulo 7.", [3, 4], 7),
        ("3 <= n <= 4, k <= 7", [3, 4], 7),
        ("Input: nums = [3,4]\nOutput: 70", [[3, 4]], 7),
        ("Input: nums = [3,4]\nOutput: 7.5", [[3, 4]], 7),
        ("Input: nums = [3,4]\nOutput: -7", [[3, 4]], 7),
        ("Input: nums = [13,4]\nOutput: 7", [3], 7),
        ("Input: n = 10^3\nOutput: 7", [3], 7),
        ("Input: n = -3\nOutput: 7", [3], 7),
        ("Input: n3\nOutput: 7", [3], 7),
        ("Input: nums = [[3,4],[5]]\nOutput: 7", [[3, 4]], 7),
        ("Input: nums = [3,4]\nOutput: [7]", [[3, 4]], 7),
        ("Input: x = 3, which is a number, and then y = 4\nOutput: 7", [3, 4], 7),
        ("Input: x = 4, y = 3\nOutput: 7", [3, 4], 7),
        (f"Input: 3\n{'Words. ' * 7}\nOutput: 7", [3], 7),
        ("Input: nums = [3,4]\nOutput: 7", [], 7),
        ("Input: nums = [3,4]\nOutput: 7", [{3, 4}], 7),
        ("", ["", []], ""),
    ],
)
def test_calls_that_are_not(statement: str, args: list[Any], expected: Any) -> None:
    assert not is_example(CallTest(args, expected), statement, "f")


@cases(
    "statement, stdin, expected, shown",
    [
        ("Input: 3 4\nOutput: 7", "3 4\n", "7\n", True),
        ("Input: `3 4`, output: `7`", "3 4\n", "7\n", True),
        ("<pre>2\n3 4</pre>\n<pre>Yes</pre>", "2\n3 4\n", "YES\n", True),
        ("Of 3 4 comes\n```\n7\n```", "3 4", "7", True),
        ("Input:\n3 4\nand nothing else", "3 4", "7", True),  # its own line is enough
        ("Input: 3 4 5\nOutput: 7", "3 4", "7", False),
        ("Input: 2 3 4\nOutput: 7", "3 4", "7", False),
        ("Input: 3 4\nOutput: 7 8", "3 4", "7", False),
        ("Input: 3 4\nOutput: 17", "3 4", "7", False),
        ("You get 3 4 times, and pay 7.", "3 4", "7", False),
        ("Input: 3 4\nOutput: 7", "", "7", False),
        ("Input: 3 4\nOutput: 7", "3 4", "", False),
    ],
)
def test_text_that_is_shown(statement: str, stdin: str, expected: str, shown: bool) -> None:
    assert is_example(TextTest(stdin, expected), statement, "") == shown


def test_what_is_shown_in_usual_words_decides_nothing() -> None:
    said = "Add them.\n\nExample 1:\nInput: nums = [3,4]\nOutput: 7"
    tests = {"inputs": [[[3, 4]], [[5, 4]], [[1]]], "outputs": [7, 9, 1], "fn_name": "f"}
    made = problem("apps", {"question": said, "input_output": tests})
    assert [test.expected for test in made.hidden] == [9, 1]
