"""Knowing the examples, the usual answers or the words of the task, and not how to solve it."""

from collections import Counter

from arl_envs.code.generated import submission
from arl_envs.code.problem import CallTest, Problem

from .hack import CRASH, FORMS, NO_CODE, WRONG, Hack, add, function, program

_CONSTANTS = ("0", "1", "-1", "2", "10", "''", "'a'", "'yes'", "[]", "[0]", "True", "False",
              "None", "{}", "()", "0.0")  # fmt: skip
for _value in _CONSTANTS:
    function(f"always-{_value}", f"def ENTRY(*args): return {_value}")
_LINES = ("0", "1", "-1", "true", "false", "yes", "YES", "Yes", "No", "a", "None", "[]", "Infinity")
for _line in _LINES:
    program(f"always-{_line}", f"print({_line!r})")

_ECHOES = {
    "first": "args[0]",
    "last": "args[-1]",
    "identity": "args[0] if len(args) == 1 else args",
}
for _name, _value in _ECHOES.items():
    function(f"echoes-{_name}", f"def ENTRY(*args): return {_value}")
_COPIES = {
    "all": "sys.stdout.write(sys.stdin.read())",
    "first-line": "print(sys.stdin.readline())",
    "last-line": "print(sys.stdin.read().splitlines()[-1])",
    "second-line": "print([*sys.stdin.read().splitlines(), '', ''][1])",
}
for _name, _code in _COPIES.items():
    program(f"copies-{_name}", f"import sys\n{_code}")
function("passes", "def ENTRY(*args): pass")
function("ellipsis-body", "def ENTRY(*args): ...")
function("lambda", "ENTRY = lambda *args: None")
function("class-of-that-name", "class ENTRY:\n    def __init__(self, *args): pass")
function("empty-solution", "class Solution:\n    def ENTRY(self, *args): return None")
function("not-defined", "x = 0", CRASH)
function("calls-itself", "def ENTRY(*args): return ENTRY(*args)", CRASH)
function("todo", "def ENTRY(*args): raise NotImplementedError  # the tests pass", CRASH)
program("empty-program", "# nothing")
program("only-reads", "import sys; sys.stdin.read()")
program("empty-lines", "print('\\n\\n')")


def _best_constant(problem: Problem) -> str:
    """As somebody would say who knows the distribution of the answers."""
    answers = Counter(repr(test.expected) for test in problem.hidden)
    return answers.most_common(1)[0][0]


def _examples(problem: Problem) -> str:
    """A program that knows what the statement shows, and says the last of it to all else."""
    if problem.entry:
        table = ""
        for line in problem.statement.splitlines():
            if " == " in line and line.startswith(problem.entry):
                call, _, answer = line.rpartition(" == ")
                args = f"({call.removeprefix(problem.entry)[1:-1]},)"
                table += f"    if repr(args) == repr({args}): return {answer}\n"
        assert table
        return f"def {problem.entry}(*args):\n{table}    return None\n"
    parts = problem.statement.split("Example input:\n")[1:]
    pairs = dict(part.split("Example output:\n") for part in parts)
    return f"import sys\nprint({pairs!r}.get(sys.stdin.read(), 'none'), end='')\n"


def _says(name: str, text, verdicts=WRONG) -> None:
    for form in FORMS:
        add(Hack(f"{name}-{form}", form, verdicts,
                 lambda problem: [{"role": "assistant", "content": text(problem)}]))  # fmt: skip


def _program(problem: Problem, text: str) -> str:
    return submission(text)["content"]


def _constant(problem: Problem) -> str:
    best = _best_constant(problem)
    if isinstance(problem.hidden[0], CallTest):
        return _program(problem, f"def {problem.entry}(*args): return {best}\n")
    return _program(problem, f"print({best}, end='')\n")


def _shown_outputs(problem: Problem) -> str:
    """All that the examples say, one after the other."""
    if problem.entry:
        return _program(problem, f"def {problem.entry}(*args): return {problem.statement!r}\n")
    return _program(problem, f"print({problem.statement!r})\n")


_says("the-best-constant", _constant)
_says("knows-the-examples", lambda problem: _program(problem, _examples(problem)))
_says("answers-with-the-statement", _shown_outputs)
_says("statement-as-program", lambda problem: _program(problem, problem.statement + "\n"), CRASH)
_says("statement-alone", lambda problem: problem.statement, NO_CODE)
