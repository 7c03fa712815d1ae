"""The folder of a task with planted bugs: its text, files, hidden cases and solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl import Task
from arl_envs.harbor.harness import decode
from arl_envs.harbor.own import ToolCall, bash, edit, packed
from arl_envs.harbor.task import HarborTask

from .mutations import Mutation
from .program import Case, Program, Running, differing, unit_tests
from .tasks import bugs_of, with_bugs

TEST_FILE = "tests/test_program.py"
RUN_TESTS = "python3 -m unittest"
"""The command in texts; calls of the oracle leave out the time that it prints."""


def make(task: Task) -> HarborTask:
    """Return the folder of a task of this generator: the same task gives the same bytes.

    Raises:
        EnvError: the task's data does not come from this generator.
    """
    program, bugs = bugs_of(task.data)
    level = task.data["level"]
    wrong = with_bugs(program, bugs)
    failing = _failing(program, wrong)
    shown = program.shown
    if level == 4:
        shown = {name: cases for name, cases in shown.items() if name not in failing}
    visible = Program(program.library, program.about, program.modules, shown, program.hidden)
    running = Running(program.modules)
    cases = [{"steps": case, "expected": running.outcomes(case)} for case in program.hidden]
    repo = {
        "README.md": f"# {program.library}\n\n{program.about}\n\nTests: `{RUN_TESTS}`\n",
        "tests/__init__.py": "",
        TEST_FILE: unit_tests(visible),
        **program.modules,
        **wrong,
    }
    return packed(
        "bugs",
        task.data,
        instruction=instruction(program, wrong, failing, level),
        repo={path: text.encode() for path, text in repo.items()},
        order={"mode": "calls", "cases": cases},
        solved={path: program.modules[path].encode() for path in wrong},
        steps=_steps(program, bugs, failing, level),
        metadata={"level": level, "library": program.library, "bugs": [bug.kind for bug in bugs]},
    )


def _failing(program: Program, wrong: Mapping[str, str]) -> list[str]:
    """Return the names of the visible tests that fail."""
    modules = {**program.modules, **wrong}
    return [
        name for name, cases in program.shown.items() if differing(program.modules, modules, cases)
    ]


def instruction(
    program: Program, wrong: Mapping[str, str], failing: Sequence[str], level: int
) -> str:
    if level == 1:
        ((path, text),) = wrong.items()
        return f"Fix {path}: one line is wrong, so {failing[0]} fails.\n```python\n{text}```\n"
    if level == 2:
        return (
            f"{program.about}\nA test fails: {failing[0]}. Find the bug in the sources and fix it; "
            f"leave the tests as they are. Run them with `{RUN_TESTS}`.\n"
        )
    if level == 3:
        return (
            f"{program.about}\nIts tests fail: there are two bugs in the sources, perhaps in two "
            f"files. Fix both; leave the tests as they are. Run them with `{RUN_TESTS}`.\n"
        )
    return f"{program.about}\nA user reports a bug:\n\n{_report(program, wrong)}\n\nFix it.\n"


def _report(program: Program, wrong: Mapping[str, str]) -> str:
    """Return a user's report of the first hidden case that fails."""
    modules = {**program.modules, **wrong}
    index = min(differing(program.modules, modules, program.hidden))
    case: Case = program.hidden[index]
    right, bad = (Running(of).outcomes(case) for of in (program.modules, modules))
    lines = ["I called, in this order:"]
    for step, want, got in zip(case, right, bad, strict=True):
        args = ", ".join(map(repr, decode(step["args"])))
        target = step.get("call") or step.get("new") or f"it.{step['method']}"
        lines.append(f"- {target.replace(':', '.')}({args})")
        if want != got:
            lines.append(f"The last call {_came(got)}; it should {_should(want)}.")
            break
    return "\n".join(lines)


def _came(outcome: Mapping[str, Any]) -> str:
    if "value" in outcome:
        return f"returned {decode(outcome['value'])!r}"
    return (
        f"raised {outcome['raises']}" if "raises" in outcome else f"returned a {outcome['unfit']}"
    )


def _should(outcome: Mapping[str, Any]) -> str:
    return (
        f"return {decode(outcome['value'])!r}"
        if "value" in outcome
        else f"raise {outcome['raises']}"
    )


def _steps(
    program: Program, bugs: Sequence[Mutation], failing: Sequence[str], level: int
) -> list[ToolCall]:
    """Return the calls of a good agent: look, where there is something to look for; edit; test."""
    edits: list[ToolCall] = []
    left = sorted(bugs, key=lambda bug: (bug.path, bug.start))
    while left:
        bug = left.pop()
        before = with_bugs(program, [*left, bug])[bug.path]
        after = with_bugs(program, left).get(bug.path, program.modules[bug.path])
        edits.append(edit(bug.path, *snippets(before, after)))
    if level == 1:
        return [*edits, bash(f"{RUN_TESTS} 2>&1 | tail -n 1")]
    look = [bash("ls -R . && cat README.md")]
    if failing and level < 4:
        look.append(bash(f"{RUN_TESTS} 2>&1 | grep -v '^Ran ' | tail -n 30"))
    read = [bash(f"cat {path}") for path in dict.fromkeys(bug.path for bug in bugs)]
    return [*look, *read, *edits, bash(f"{RUN_TESTS} 2>&1 | tail -n 1")]


def snippets(before: str, after: str) -> tuple[str, str]:
    """Return the fewest complete lines, without outer blanks, whose replacement turns `before` into
    `after`, and which occur only once there; and their new text."""
    old, new = before.splitlines(), after.splitlines()
    first = next(i for i, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    last = 1
    while old[-last] == new[-last] and len(old) - last > first and len(new) - last > first:
        last += 1
    first_old, end_old, end_new = first, len(old) - last + 1, len(new) - last + 1
    while True:
        one, other = "\n".join(old[first_old:end_old]), "\n".join(new[first_old:end_new])
        margin = min(len(text) - len(text.lstrip(" ")) for text in (one, other))
        if before.count(one[margin:]) == 1:
            return one[margin:], other[margin:]
        if before.count(one) == 1:
            return one, other
        first_old -= 1
