"""Rows of contests and of LeetCode: a right program is paid and a wrong one is not."""

import json
from pathlib import Path
from typing import Any

import pytest
from arl_envs.code.grader import Grader
from arl_envs.code.problem import CallTest, Problem, TextTest
from arl_envs.code.rows import row_tasks
from arl_envs.code.rows.several import accepts_several
from arl_envs.code.verdict import Verdict

from agentgym_rl.core import ConfigError, EnvError
from agentgym_rl.gym.data import RowRefused
from tests.contracts.sandboxes import Opened
from tests.kit.cases import cases

from .rows_kit import passes, problem, write_lines

ADD, FIVE = "input(); print(sum(map(int, input().split())))", "print(5)"
CONTESTS = {
    "description": "Read n, then n integers; print their sum.",
    "public_tests": {"input": ["1\n5\n"], "output": ["5\n"]},
    "private_tests": {"input": ["2\n1 2\n", "3\n1 2 3\n"], "output": ["3\n", "6\n"]},
    "generated_tests": {"input": ["4\n9 9 9 9\n"], "output": ["36\n"]},
    "time_limit": {"seconds": 8, "nanos": 500_000_000},
    "input_file": "", "output_file": "",
}  # fmt: skip
TESTS = [{"input": f"2\n{n} 2\n", "output": f"{n + 2}\n"} for n in range(3)]
CODEFORCES = {
    "title": "Add", "description": "Sum.", "input_format": "n, then n numbers",
    "output_format": "the sum", "note": None, "time_limit": 1.0, "official_tests": TESTS,
    "examples": [{"input": "1\n5\n", "output": "5\n"}], "input_mode": "stdio",
}  # fmt: skip
CASES = [{"type": "stdin_stdout", **test} for test in TESTS]
VERIFIABLE = {
    "prompt": "Read n, then n integers; print their sum.", "task_type": "verifiable_code",
    "verification_info": json.dumps({"language": "python", "test_cases": CASES}),
}  # fmt: skip
GROUND = {"inputs": [t["input"] for t in TESTS], "outputs": [t["output"] for t in TESTS]}
VERL = {
    "ability": "code",
    "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Sum."}],
    "reward_model": {"style": "rule", "ground_truth": json.dumps(GROUND)},
}
PROGRAMS = {"code_contests": CONTESTS, "codeforces": CODEFORCES, "verifiable": VERIFIABLE}
PROGRAMS |= {"verl": VERL}


@cases("format", PROGRAMS)
def test_programs(format: str) -> None:
    made = problem(format, PROGRAMS[format], constant_answers=False)
    assert len(made.hidden) == 3
    assert (passes(made, ADD), passes(made, FIVE)) == (True, False)
    assert "standard input" in made.statement


def test_what_the_statements_and_limits_are() -> None:
    assert problem("code_contests", CONTESTS).time_limit_s == 8.5
    said = problem("codeforces", CODEFORCES).statement
    assert said.startswith("Add\n\nSum.\n\nInput\n\nn, then n numbers\n\nOutput\n\nthe sum")
    assert "Input:\n```\n1\n5\n```" in said
    assert problem("verl", VERL).statement.startswith("Sum.\n\n")
    literal = VERIFIABLE | {"verification_info": repr(json.loads(VERIFIABLE["verification_info"]))}
    assert problem("verifiable", literal) == problem("verifiable", VERIFIABLE)


@cases(
    "format, changes, reason",
    [
        ("code_contests", {"private_tests": None, "generated_tests": []}, "every test is shown"),
        ("code_contests", {"input_file": "../x"}, "expected the name of a file"),
        ("code_contests", {"private_tests": {"input": ["1"], "output": []}}, "1 inputs, but 0"),
        ("codeforces", {"interaction_format": "Ask."}, "interactive"),
        ("codeforces", {"executable": False}, "executable: false"),
        ("codeforces", {"input_mode": "socket"}, "input_mode"),
        ("codeforces", {"official_tests": [{"input": "1 ...", "output": "2"}]}, "every test is"),
        ("verifiable", {"task_type": "verifiable_math"}, "no programming problem"),
        ("verifiable", {"verification_info": '{"language": "rust"}'}, "only Python"),
        ("verifiable", {"verification_info": "open('x')"}, "is no JSON"),
        ("verl", {"ability": "math"}, "ability: 'math'"),
        ("verl", {"prompt": [{"role": "system", "content": "Do."}]}, "no text of a user"),
        ("verl", {"reward_model": {"ground_truth": "7"}}, "expected tests"),
    ],
)
def test_rows_that_cannot_be_graded_say_why(format: str, changes: Any, reason: str) -> None:
    with pytest.raises(RowRefused, match=reason):
        problem(format, PROGRAMS[format] | changes)


def test_rows_of_bigcodebench_are_refused_by_name(tmp_path: Path) -> None:
    row = {"complete_prompt": "def task_func():", "test": "import unittest", "entry_point": "f"}
    with pytest.raises(ConfigError, match=r"BigCodeBench.*--env harbor"):
        row_tasks("train", path=write_lines(tmp_path / "rows.jsonl", [row]))


ONE = {"inputs": ["1", "2", "3"], "outputs": ["yes"] * 3}
LIKE_ONE = {"inputs": ["1", "2"], "outputs": ["1.0", "1.0000001"]}


@cases("tests", [ONE, LIKE_ONE, {"inputs": ["1"], "outputs": ["2"]}], ids=range(3))
def test_rows_that_a_constant_passes_are_refused(tests: Any) -> None:
    row = {"question": "Do it.", "input_output": tests}
    with pytest.raises(RowRefused, match=r"ignores its input.*constant_answers=true"):
        problem("apps", row, constant_answers=False)
    assert problem("apps", row).hidden


@cases(
    "words",
    [
        "If there are multiple answers, print any of them.",
        "If there are several possible solutions, you may output any one.",
        "Print any valid sequence.",
        "Any valid answer will be accepted.",
        "You may return the answer in any order.",
        "If multiple solutions exist, output any.",
    ],
)
def test_statements_that_accept_several_answers(words: str) -> None:
    assert accepts_several(words)
    row = CONTESTS | {"description": f"Split n. {words}"}
    with pytest.raises(RowRefused, match=r"no checker.*several_answers=true"):
        problem("code_contests", row)
    assert problem("code_contests", row, several_answers=True).hidden


@cases(
    "words",
    [
        "If there are multiple answers, print the smallest one.",
        "If multiple strings have it, return the one that comes first.",
        "Print the number of ways to choose any of them.",
        "Print any number of blanks after it.",
        "You can move in any direction; print the sum.",
    ],
)
def test_statements_with_one_answer(words: str) -> None:
    assert not accepts_several(words)


CHECKER = """\
import sys
given, own, said = (open(name).read().split() for name in sys.argv[1:])
x, y = map(int, said)
print(int(x + y == int(given[0]) and x > 0 and y > 0))
"""
SPLIT = CODEFORCES | {
    "description": "Split n. If there are multiple answers, print any of them.",
    "official_tests": [{"input": f"{n}\n", "output": f"1 {n - 1}\n"} for n in (7, 5, 9)],
    "examples": [], "generated_checker": CHECKER,
}  # fmt: skip
SUMS = [TextTest("1 2\n", "3"), TextTest("5 6\n", "11")]
FILES = Problem("Add.", "", SUMS, input_file="in.txt", output_file="out.txt")
READ = "a = sum(map(int, open('in.txt').read().split()))\n"


def verdict(world: Opened, made: Problem, source: str) -> Verdict:
    return world.run(Grader(world.backend).grade(made, source)).verdict


@cases(
    "source, right",
    [
        ("print(int(input()) - 1, 1)", True),
        ("print(2, int(input()) - 2)", True),
        ("print(0, input())", False),
        ("print('?' * 10)", False),
        ("pass", False),
        ("open('correct_output.txt', 'w').write('1 6'); print(1)", False),
    ],
)
@pytest.mark.slow
def test_a_checker_accepts_any_right_answer(world: Opened, source: str, right: bool) -> None:
    made = problem("codeforces", SPLIT)
    assert (verdict(world, made, source) is Verdict.ACCEPTED) == right
    assert Problem.from_json(json.loads(json.dumps(made.to_json()))).checker == CHECKER.strip()


EACH = "import sys\nsaid = open(sys.argv[3]).read().split()\n"


@cases(
    "checker, fault",
    [
        ("raise SystemExit(1)", "rejects the row's own output"),
        ("print(0)", "rejects the row's own output"),
        ("print('ok')", "rejects the row's own output"),
        ("print(1)", "accepts nonsense"),
        (f"{EACH}print(int(all(map(str.isdigit, said))))", "accepts an empty output"),
    ],
)
@pytest.mark.slow
def test_a_checker_that_checks_nothing_gives_no_reward(
    world: Opened, checker: str, fault: str
) -> None:
    made = problem("codeforces", SPLIT | {"generated_checker": checker})
    with pytest.raises(EnvError, match=f"the row's checker {fault}"):
        verdict(world, made, "print(int(input()) - 1, 1)")


@cases(
    "source, right",
    [
        (f"{READ}open('out.txt', 'w').write(str(a))", True),
        (f"{READ}print(a)", True),
        ("print(sum(map(int, input().split())))", True),
        ("open('out.txt', 'w').write('3')", False),
    ],
)
@pytest.mark.slow
def test_programs_that_read_and_write_files(world: Opened, source: str, right: bool) -> None:
    assert (verdict(world, FILES, source) is Verdict.ACCEPTED) == right


def test_files_are_in_the_statement() -> None:
    made = problem("codeforces", CODEFORCES | {"input_mode": "file"})
    assert "reads from the file `input.txt` and writes the answer to the file" in made.statement


def leetcode(kind: str, test: str) -> dict[str, Any]:
    header = f"def go(self, root: Optional[{kind}]) -> Optional[{kind}]:"
    starter = f"# class {kind}:\n#     pass\nclass Solution:\n    {header}\n        "
    return {"entry_point": "Solution().go", "query": "Do it.", "starter_code": starter} | {
        "test": f"def check(candidate):\n{test}"
    }


REVERSE = """\
class Solution:
    def go(self, root):
        last = None
        while root:
            root.next, last, root = last, root, root.next
        return last
"""
INVERT = """\
class Solution:
    def go(self, root):
        if root:
            root.left, root.right = self.go(root.right), self.go(root.left)
        return root
"""
SAME = "class Solution:\n    def go(self, root): return root"
CIRCLE = "class Solution:\n    def go(self, root):\n        root.next = root\n        return root"
LISTS = leetcode(
    "ListNode",
    "    assert is_same_list(candidate(root = list_node([1, 2, 3])), list_node([3, 2, 1]))\n"
    "    assert is_same_list(candidate(root = list_node([])), list_node([]))\n"
    "    assert is_same_list(candidate(root = list_node([1, 2])), list_node([2, 1]))\n",
)
TREES = leetcode(
    "TreeNode",
    "    assert is_same_tree(candidate(root = tree_node([4, 2, 7, 1, None])), "
    "tree_node([4, 7, 2, None, None, None, 1]))\n"
    "    assert is_same_tree(candidate(root = tree_node([2, 1])), tree_node([2, None, 1]))\n",
)
PRIVATE = [{"input": f"[{n}, 2, {n}, 4]", "output": f"[4, {n}, 2, {n}]"} for n in (1, 2)]
CALLED = {
    "question_content": "Reverse it.", "public_test_cases": "[]", "metadata": '{"func_name": "go"}',
    "private_test_cases": json.dumps([{**test, "testtype": "functional"} for test in PRIVATE]),
    "starter_code": LISTS["starter_code"],
}  # fmt: skip


@cases(
    "format, row, right, wrong",
    [
        ("leetcode", LISTS, REVERSE, SAME),
        ("leetcode", LISTS, REVERSE, CIRCLE),
        ("leetcode", TREES, INVERT, SAME),
        ("livecodebench", CALLED, REVERSE, SAME),
    ],
    ids=["list", "circle", "tree", "by annotation"],
)
@pytest.mark.slow
def test_lists_and_trees(format: str, row: Any, right: str, wrong: str) -> None:
    made = problem(format, row)
    assert (passes(made, right), passes(made, wrong)) == (True, False)
    if "next" in right:
        own = "class ListNode:\n    def __init__(self, val, next=None): self.val = val\n"
        assert passes(made, own + right)


def test_methods_by_named_arguments() -> None:
    test = "    assert candidate(root = 1) == 2\n    assert candidate(root = 2) == 3\n"
    made = problem("leetcode", leetcode("int", test), constant_answers=False)
    assert passes(made, "class Solution:\n    def go(self, root): return root + 1")
    assert not passes(made, SAME)
    assert all(isinstance(test, CallTest) for test in made.hidden)


def test_numbers_of_numpy_are_numbers() -> None:
    pytest.importorskip("numpy")
    import numpy
    from arl_envs.code.driver import encode

    assert encode([numpy.int64(3), numpy.float32(0.5)]) == {"list": [{"like": 3}, {"like": 0.5}]}
    with pytest.raises(ValueError, match=r"one element|size 1"):
        encode(numpy.array([1, 2]))
