"""The `python` tool: it runs a complete program of the agent and reports the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentgym_rl import Message, Sandbox, SandboxLost
from agentgym_rl.gym import ExecResult, SandboxBackend
from agentgym_rl.gym.sandbox_records import Status
from agentgym_rl.gym.tool_env import BadCall, argument_of, listed, one_argument_tool, reply_to

from .verdict import CREATE_TIMEOUT_S, blame

TOOL = one_argument_tool("python", "Run a Python program and see what it prints.", "code")
DEADLY = "[the program was the end of its sandbox]"
MAX_CALLS = 4
"""The most calls in one message; further ones are refused."""
EPISODE_S, LEAST_S = 20.0, 0.5
"""The wall-clock seconds for all programs of an episode, and the least for the last one. Sleeping
programs could otherwise outlast the step, and then they would not be blamed."""


class PythonTool:
    """The tool in one episode; with `enabled` False, it refuses every call."""

    def __init__(self, sandboxes: SandboxBackend, *, output_chars: int, enabled: bool) -> None:
        self._sandboxes = sandboxes
        self._output_chars = output_chars
        self._enabled = enabled
        self._left_s = EPISODE_S

    async def answer(self, calls: Any) -> tuple[list[Message], list[str]]:
        """Return a tool message for each call, in order, and the errors of malformed calls.

        Each program has a sandbox of its own: nothing is kept for the next program or the tests.

        Raises:
            SandboxError: there is no sandbox to run it in.
        """
        messages: list[Message] = []
        errors: list[str] = []
        for number, call in enumerate(listed(calls)):
            try:
                code = self._program(call, number)
            except BadCall as error:
                errors.append(str(error))
                messages.append(reply_to(call, f"error: {error}"))
                continue
            result = await self._run(code)
            text = shown(result, self._output_chars) if result else DEADLY
            messages.append(reply_to(call, text))
        return messages, errors

    def _program(self, call: Mapping[str, Any], number: int) -> str:
        """Return the program of `call`.

        Raises:
            BadCall: the call may not be run, or has no program.
        """
        if not self._enabled:
            raise BadCall("there is no tool")
        if number >= MAX_CALLS:
            raise BadCall(f"more than {MAX_CALLS} calls in a message")
        code = argument_of(call, tool="python", argument="code")
        if self._left_s <= 0:
            raise BadCall(f"programs have had their {EPISODE_S:g} seconds")
        return code

    async def _run(self, code: str) -> ExecResult | None:
        """Run a program; return None if its sandbox was lost twice.

        Raises:
            SandboxError: there is no sandbox to run it in.
        """
        lost: SandboxLost | None = None
        for _ in range(2):
            try:
                async with await self._sandboxes.create(timeout_s=CREATE_TIMEOUT_S) as sandbox:
                    return await self._timed(sandbox, code)
            except SandboxLost as error:
                lost = error
        assert lost is not None
        await blame(self._sandboxes, lost)
        return None

    async def _timed(self, sandbox: Sandbox, code: str) -> ExecResult:
        wall_s = min(sandbox.limits.wall_s, max(self._left_s, LEAST_S))
        result = await sandbox.run_python(code, limits=replace(sandbox.limits, wall_s=wall_s))
        self._left_s -= result.wall_ms / 1000
        return result


def shown(result: ExecResult, chars: int) -> str:
    """Return the tool's text for the agent: the output, and the way a failed program ended."""
    parts = [_text(result.stdout, chars), _text(result.stderr, chars)]
    ending = {Status.OK: "", Status.ERROR: f"[exit code {result.exit_code}]"}
    parts.append(ending.get(result.status, f"[{result.status.value}]"))
    return shortened("\n".join(filter(None, parts)), chars) or "(no output)"


def _text(output: bytes, chars: int) -> str:
    """Return the part of `output` that `shortened` uses; to decode megabytes would block others."""
    output, most = output.rstrip(b"\n"), 4 * chars  # bytes of a character
    if len(output) > 2 * most:
        output = output[:most] + output[-most:]
    return output.decode("utf-8", "replace")


def shortened(text: str, chars: int) -> str:
    """Return at most `chars` characters of a text, with the middle left out."""
    if len(text) <= chars:
        return text
    mark = " [...] "
    half = (chars - len(mark)) // 2
    return text[:half] + mark + text[-half:]
