"""The Python tool: what is shown of an output, and whose fault it is that a sandbox died."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from arl_envs.code.python_tool import DEADLY, PythonTool, shortened, shown
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl.core import SandboxLost
from agentgym_rl.gym import ExecResult
from agentgym_rl.gym.sandbox_records import Status

from .losing import LosingBackend

PIECES = st.sampled_from([b"a", b"\n", b"\xff", b"\xe2\x82", "é€𝄞".encode(), b" "])
OUTPUTS = st.lists(st.tuples(PIECES, st.integers(1, 300)), max_size=4).map(
    lambda parts: b"".join(piece * count for piece, count in parts)
)


@given(OUTPUTS, OUTPUTS, st.integers(20, 60))
def test_a_large_output_is_shown_as_if_all_of_it_were_read(
    stdout: bytes, stderr: bytes, chars: int
) -> None:
    both = [data.decode("utf-8", "replace").rstrip("\n") for data in (stdout, stderr)]
    whole = shortened("\n".join(filter(None, both)), chars) or "(no output)"
    assert shown(ExecResult(Status.OK, 0, None, stdout, stderr), chars) == whole


def answered(code: str, backend: LosingBackend) -> str:
    function = {"name": "python", "arguments": json.dumps({"code": code})}
    calls: Any = [{"id": "c1", "type": "function", "function": function}]
    tool = PythonTool(backend, output_chars=100, enabled=True)
    (message,), errors = asyncio.run(tool.answer(calls))
    assert not errors
    return message["content"]


def test_a_sandbox_lost_by_chance_is_replaced() -> None:
    assert answered("# deadly", LosingBackend(losses=1)) == "42"


def test_a_program_that_is_the_end_of_its_sandbox_twice_is_told_so() -> None:
    backend = LosingBackend(losses=2)
    assert answered("# deadly", backend) == DEADLY
    assert backend.programs == 3  # and an innocent one


def test_sandboxes_that_no_program_survives_are_to_blame_themselves() -> None:
    with pytest.raises(SandboxLost, match="died of this"):
        answered("print(1)", LosingBackend(losses=9, kills_all=True))


def test_programs_have_their_seconds_in_an_episode() -> None:
    function = {"name": "python", "arguments": json.dumps({"code": "print(42)"})}
    calls: Any = [{"id": str(i), "type": "function", "function": function} for i in range(4)]
    tool = PythonTool(LosingBackend(losses=0, wall_ms=12_000), output_chars=100, enabled=True)
    messages, errors = asyncio.run(tool.answer(calls))
    assert [message["content"][:9] for message in messages] == [
        "42",
        "42",
        "error: pr",
        "error: pr",
    ]
    assert errors == ["programs have had their 20 seconds"] * 2
