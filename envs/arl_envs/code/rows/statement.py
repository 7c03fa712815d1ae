"""The text for the agent: the row's text, examples, and the function or program to write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from arl_envs.code.calculator.values import ANSWER
from arl_envs.code.problem import CallTest, TextTest

from .draft import Draft
from .example import squeezed

MAX_EXAMPLES = 3
MAX_EXAMPLE_CHARS = 1000

PROGRAM = (
    "Write a Python program that reads from standard input and prints the answer to standard "
    "output."
)


def statement_of(draft: Draft) -> str:
    """Return the complete text for the agent. Shown tests are added as examples if the row's text
    lacks them: at most three, and no long ones."""
    parts = [draft.statement.strip()]
    examples = [text for test in draft.shown if (text := _example(test, draft))]
    if examples:
        parts.append("Examples:\n\n" + "\n\n".join(examples[:MAX_EXAMPLES]))
    parts.append(_form(draft) if draft.entry else PROGRAM)
    if draft.starter.strip():
        fence = "```" if "```" not in draft.starter else "````"
        parts.append(f"Start from this code:\n\n{fence}python\n{draft.starter.rstrip()}\n{fence}")
    return "\n\n".join(parts)


def _form(draft: Draft) -> str:
    if re.search(r"^\s*class\s+Solution\b", draft.starter, re.MULTILINE):
        return f"Write the Python class `Solution` with the method `{draft.entry}`."
    if draft.starter.strip():
        return f"Write the Python function `{draft.entry}`."
    counts = sorted({len(test.args) for test in draft.tests if isinstance(test, CallTest)})
    number = " or ".join(map(str, counts))
    return (
        f"Write a Python function `{draft.entry}` that takes {number} "
        f"argument{'' if counts == [1] else 's'} and returns the answer."
    )


def _example(test: CallTest | TextTest, draft: Draft) -> str:
    """Return `test` in words; "" if the statement has it already, or if it is too long."""
    if isinstance(test, TextTest):
        text = (
            f"Input:\n```\n{test.stdin.rstrip()}\n```\nOutput:\n```\n{test.expected.rstrip()}\n```"
        )
        known = _has(draft.statement, [test.stdin, test.expected])
    else:
        args = ", ".join(map(repr, test.args))
        call = f"{draft.entry}({args})"
        text = f"`{call}` returns `{test.expected!r}`"
        if test.view:
            said = re.sub(rf"\b{ANSWER}\b", lambda _: call, test.view)
            text = "" if "\n" in said else f"`{said}` is `{test.expected!r}`"
        known = _has(draft.statement, [*test.args, test.expected])
    return "" if known or len(text) > MAX_EXAMPLE_CHARS else text


def _has(statement: str, parts: Sequence[Any]) -> bool:
    """Return whether all `parts` occur in `statement`, with any spaces and quotes."""
    haystack = squeezed(statement)
    texts = (part if isinstance(part, str) else repr(part) for part in parts)
    return all(squeezed(text) in haystack for text in texts)
