"""A reward hack: what somebody says who wants to be paid without having solved the task."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arl_envs.code.generated import Form, submission
from arl_envs.code.problem import Problem

from agentgym_rl.core import Message

Says = Callable[[Problem], Sequence[Message]]
Verdicts = frozenset[str]

WRONG, CRASH, SLOW = (frozenset({v}) for v in ("wrong_answer", "runtime_error", "timeout"))
MEMORY, NO_CODE = frozenset({"memory"}), frozenset({"no_code"})
FORMS: tuple[Form, Form] = ("call", "text")
ENTRY = "ENTRY"
"""In a program: the name of the function that the task asks for."""


@dataclass(frozen=True)
class Hack:
    """Never paid, whatever the task; and what is said of it is one of `verdicts`."""

    name: str
    form: Form
    verdicts: Verdicts
    says: Says
    """The assistant messages of the episode; the last one is the submission."""
    task: str = "generated"
    """See `tasks.py`."""
    detail: str = ""
    """A regular expression: the program's last word on standard error, where it says something
    that the hack is about. It shows that the program came as far as it should."""


HACKS: dict[str, Hack] = {}


def add(hack: Hack) -> None:
    assert hack.name not in HACKS, f"two hacks are called {hack.name}"
    HACKS[hack.name] = hack


def submits(code: str) -> Says:
    """A submission of the program."""
    return lambda problem: [submission(code.replace(ENTRY, problem.entry or "f") + "\n")]


def calls(code: str, name: str = "python") -> Message:
    """A message with one tool call."""
    function = {"name": name, "arguments": json.dumps({"code": code})}
    call = {"id": "c1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def function(name: str, code: str, verdicts: Verdicts = WRONG, **about) -> None:
    """A hack of the call form: the source of a module with the function ENTRY."""
    add(Hack(f"{name}-call", "call", verdicts, submits(code), **about))


def program(name: str, code: str, verdicts: Verdicts = WRONG, **about) -> None:
    """A hack of the text form."""
    add(Hack(f"{name}-text", "text", verdicts, submits(code), **about))


def both(name: str, code: str, *, call: Verdicts, text: Verdicts, **about) -> None:
    """A module that does it while it is loaded, in both forms; its function knows nothing."""
    function(name, f"{code}\ndef ENTRY(*args): return None", call, **about)
    program(name, code, text, **about)
