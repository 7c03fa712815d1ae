"""The tools of an episode: a shell that keeps its state from call to call, and edits of files."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_rl import Sandbox, SandboxError, SandboxLost, ToolError
from agentgym_rl.gym import ExecResult, Session
from agentgym_rl.gym.sandbox_records import Status

MAX_COMMAND_CHARS = 256 << 10
MAX_EDITED_BYTES = 1 << 20
LEAST_S = 1.0
"""The minimum time limit of a command, in seconds, while any time of the episode is left."""
LEFT_OUT = "\n[... {} characters left out ...]\n"
NEW_SHELL = "[the shell was restarted: its variables, folder and background processes are gone]"
NO_SHELL = "[no shell starts any more in what is left of this system]"
"""The answer once earlier calls have removed or broken parts that a shell needs."""
_ENDINGS = {
    Status.TIMEOUT: "[timeout after {:.0f} s]",
    Status.CPU_LIMIT: "[CPU limit]",
    Status.MEMORY_LIMIT: "[out of memory]",
    Status.OUTPUT_LIMIT: "[too much output]",
    Status.KILLED: "[killed]",
}


@dataclass(frozen=True, slots=True)
class Record:
    """A tool call, for `info["commands"]`."""

    tool: str
    command: str
    """The command; or for an edit the path."""
    output: str
    """The text that the agent got."""
    status: str
    exit_code: int | None
    """The exit code; None if the command was ended, and for an edit."""
    duration_s: float
    output_bytes: int
    """The size of the output before its middle was left out."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Terminal:
    """The agent's tools in a sandbox with an image.

    Args:
        env: The variables of every program.
        output_chars: The most characters of an output that the agent sees.
        command_timeout_s: The seconds of a command that names none.
        total_s: The seconds of all calls together.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        env: Mapping[str, str],
        output_chars: int,
        command_timeout_s: float,
        total_s: float,
    ) -> None:
        self._sandbox = sandbox
        self._env = env
        self._output_chars = output_chars
        self._command_timeout_s = command_timeout_s
        self.left_s = total_s
        """The seconds that are left for calls."""
        self.records: list[Record] = []
        self.num_calls = 0
        self._shell: Session | None = None

    async def bash(self, command: str, timeout_s: float | None = None) -> str:
        """Run a command in the shell, and return its output with the way it ended.

        Raises:
            ToolError: the command is too long or no text, or no time is left.
            SandboxError: the sandbox failed: it is lost, or a new one starts no shell.
        """
        if len(command) > MAX_COMMAND_CHARS:
            raise ToolError(f"the command has {len(command)} characters; allowed: 262144")
        if not command.isascii():
            _check_text("command", command)
        limit_s = self._limit_s(timeout_s)
        begun = time.perf_counter()
        fresh = self._shell is None
        try:
            shell = await self._open()
            result = await shell.run(command, timeout_s=limit_s)
        except SandboxLost:
            raise
        except SandboxError as error:
            await self._drop()
            if fresh and not self.num_calls:
                raise
            shown = f"{NO_SHELL if fresh else NEW_SHELL}\n[not run: {error}]"
            self._record("bash", command, shown, "error", None, begun, 0)
            return shown
        if result.state_lost:
            await self._drop()
        shown = self._shown(result, limit_s)
        size = len(result.stdout) + len(result.stderr)
        status = "ok" if result.ok else result.status.value
        self._record("bash", command, shown, status, result.exit_code, begun, size)
        return shown

    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace `old`, which occurs exactly once in a file, by `new`; an empty `old` creates the
        file.

        Raises:
            ToolError: the file or the text is not as required; nothing was changed.
            SandboxError: the sandbox failed.
        """
        begun = time.perf_counter()
        self._limit_s(None)
        try:
            shown = await self._edit(path, old, new)
        except ToolError as error:
            self._record("edit", path, f"error: {error}", "error", None, begun, 0)
            raise
        self._record("edit", path, shown, "ok", None, begun, len(shown))
        return shown

    async def close(self) -> None:
        """End the shell with its background processes. Idempotent."""
        await self._drop()

    def take_records(self) -> list[dict[str, Any]]:
        """Return the calls since the last time, as JSON."""
        taken, self.records = self.records, []
        return [record.to_json() for record in taken]

    # ------------------------------------------------------------------ the shell
    async def _open(self) -> Session:
        if self._shell is None:
            self._shell = await self._sandbox.open_session("shell")
            settings = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb", **self._env}
            lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
            first = "exec 2>&1\nmkdir -p /logs/artifacts || :\n"
            result = await self._shell.run(first + "\n".join(lines))
            if not result.ok:
                raise SandboxError(f"the shell did not start: {result.stdout_text[-300:]}")
        return self._shell

    async def _drop(self) -> None:
        shell, self._shell = self._shell, None
        if shell is not None:
            await shell.close()

    def _limit_s(self, wanted_s: float | None) -> float:
        if self.left_s <= 0:
            raise ToolError("the time of this episode is over")
        if wanted_s is not None and not 0 < wanted_s < float("inf"):
            raise ToolError(f"timeout_s: got {wanted_s}, expected seconds above 0")
        limit_s = self._command_timeout_s if wanted_s is None else wanted_s
        return min(limit_s, max(self.left_s, LEAST_S), self._sandbox.limits.wall_s)

    def _shown(self, result: ExecResult, limit_s: float) -> str:
        text = _text(result.stdout + result.stderr, self._output_chars)
        parts = [shortened(text, self._output_chars)]
        if result.status is Status.ERROR and result.exit_code is not None:
            parts.append(f"[exit code {result.exit_code}]")
        elif result.status in _ENDINGS:
            parts.append(_ENDINGS[result.status].format(limit_s))
        if result.state_lost:
            parts.append(NEW_SHELL)
        return "\n".join(filter(None, parts)) or "(no output)"

    def _record(
        self,
        tool: str,
        command: str,
        output: str,
        status: str,
        exit_code: int | None,
        begun: float,
        size: int,
    ) -> None:
        took_s = time.perf_counter() - begun
        self.left_s -= took_s
        self.num_calls += 1
        self.records.append(
            Record(tool, command, output, status, exit_code, round(took_s, 3), size)
        )

    # ------------------------------------------------------------------ edits
    async def _edit(self, path: str, old: str, new: str) -> str:
        for name, text in (("path", path), ("old", old), ("new", new)):
            _check_text(name, text)
        before = await self._read(path)
        if not old:
            if before is not None:
                raise ToolError(f"{path} exists: give the text to replace as old")
            after = new
        else:
            if before is None:
                raise ToolError(f"there is no file {path}; an empty old creates it")
            if (count := before.count(old)) != 1:
                raise ToolError(f"old occurs {count} times in {path}; expected exactly once")
            after = before.replace(old, new)
        data = after.encode()
        if len(data) > MAX_EDITED_BYTES:
            raise ToolError(f"{path} would have {len(data)} bytes; allowed: {MAX_EDITED_BYTES}")
        try:
            await self._sandbox.write_files({path: data})
        except SandboxLost:
            raise
        except (SandboxError, ValueError) as error:
            raise ToolError(f"{path} cannot be written: {error}") from error
        return f"{'edited' if old else 'created'} {path}"

    async def _read(self, path: str) -> str | None:
        """Return the text of a file; None if there is no such file."""
        try:
            data = await self._sandbox.read_file(path, max_bytes=MAX_EDITED_BYTES)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ToolError(f"{path} cannot be edited: {error}") from error
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{path} is no UTF-8 text") from None


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{name}: no valid Unicode text") from None
    if "\0" in text and name != "new":
        raise ToolError(f"{name}: a NUL character is not allowed")


def _text(output: bytes, chars: int) -> str:
    """Return the part of an output that `shortened` uses: decoding megabytes blocks others."""
    output, most = output.rstrip(b"\n"), 4 * chars  # bytes of a character
    if len(output) > 2 * most:
        note = LEFT_OUT.format(f"about {len(output) - 2 * most}").encode()
        output = output[:most] + note + output[-most:]
    return output.decode("utf-8", "replace")


def shortened(text: str, chars: int) -> str:
    """Return at most about `chars` characters of a text, with the middle left out."""
    if len(text) <= chars:
        return text
    half = chars // 2
    return text[:half] + LEFT_OUT.format(len(text) - 2 * half) + text[-half:]
