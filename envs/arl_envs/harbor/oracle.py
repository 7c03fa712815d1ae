"""The messages of a perfect episode: the solution's steps, or its script in one call."""

from __future__ import annotations

import base64
import gzip
import io
import json
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

from agentgym_rl import EnvError, Message

from .config import TaskConfig, resolved
from .task import HarborTask
from .terminal import Terminal

STEPS = "steps.json"
"""The optional file of a solution with its tool calls, a list of {"name", "arguments"}."""
LAST = "Done."
PART_CHARS = 200_000
"""The most characters of a solution in one command, which has to be shorter than what the terminal
takes (`MAX_COMMAND_CHARS`)."""


def calls_of(task: HarborTask, config: TaskConfig) -> list[tuple[str, dict[str, Any]]]:
    """Return the tool calls (name, arguments) of the solution; none if there is no solution.

    Raises:
        EnvError: steps.json is no list of calls of bash and edit.
    """
    if STEPS in task.solution:
        return list(_steps(task))
    if not task.solution:
        return []
    timeout_s = config.agent.timeout_sec
    limit = {} if timeout_s is None else {"timeout_s": timeout_s}
    return [("bash", {"command": each, **limit}) for each in _scripts(task.solution, config)]


def messages_of(task: HarborTask, config: TaskConfig) -> list[Message] | None:
    """Return the assistant messages of a perfect episode; None if there is no solution."""
    calls = calls_of(task, config)
    if not calls:
        return None
    messages: list[Message] = []
    for number, (name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    return [*messages, {"role": "assistant", "content": LAST}]


async def play(terminal: Terminal, task: HarborTask, config: TaskConfig) -> None:
    """Play the solution.

    Raises:
        SandboxError: the sandbox failed.
        ToolError: a call cannot be made.
    """
    for name, arguments in calls_of(task, config):
        await (terminal.bash if name == "bash" else terminal.edit)(**arguments)


def _steps(task: HarborTask) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        steps = json.loads(task.solution[STEPS])
        for step in steps:
            name, arguments = step["name"], step["arguments"]
            if name not in ("bash", "edit") or not isinstance(arguments, dict):
                raise ValueError(f"{name!r} with {arguments!r:.100}")
            yield name, arguments
    except (ValueError, TypeError, KeyError) as error:
        raise EnvError(
            f"task {task.name}: solution/{STEPS}: {error!r:.200}; expected a list such as "
            '[{"name": "bash", "arguments": {"command": "ls"}}]'
        ) from error


def _scripts(files: Mapping[str, bytes], config: TaskConfig) -> list[str]:
    """Return the commands that unpack a solution to /solution and run its solve.sh: one, unless it
    is too large for a command."""
    env = resolved(config.solution.env)
    given = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
    try:
        text = files["solve.sh"].decode() if len(files) == 1 else ""
    except UnicodeDecodeError:
        text = ""
    before: list[str] = []
    if text and "ARL_END" not in text and "\0" not in text and len(text) < PART_CHARS:
        text = text if text.endswith("\n") else f"{text}\n"
        unpack = f"cat > /solution/solve.sh << 'ARL_END'\n{text}ARL_END"
    else:
        packed = base64.b64encode(_packed(files)).decode()
        *parts, last = [packed[at : at + PART_CHARS] for at in range(0, len(packed), PART_CHARS)]
        before = [f"cat >> /tmp/solution.b64 << 'ARL_END'\n{part}\nARL_END" for part in parts]
        held = "/tmp/solution.b64 " if parts else ""
        unpack = f"cat {held}- << 'ARL_END' | base64 -d | tar -xz -C /solution\n{last}\nARL_END"
    run = f"{given}/solution/solve.sh"
    return [*before, f"mkdir -p /solution\n{unpack}\nchmod +x /solution/solve.sh\n{run}"]


def _packed(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of files; equal files give equal bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)
