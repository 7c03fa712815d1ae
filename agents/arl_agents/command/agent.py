"""An agent that lets a program play the episode."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from agentgym_rl import Agent, AgentError, ConfigError, Env, InfraError, Message, Task
from agentgym_rl.gym.tool_env import text_of
from arl_agents.bridge import EnvTools
from arl_agents.extras import import_extra

from .inside import FOLDER, run_inside
from .presets import PRESETS, Launch, Preset, preset_start
from .program import MAX_BYTES, TAIL_CHARS, Program, Start, running
from .tool_server import Calls, serving_tools
from .variables import episode_variables, own_variables, search_path, task_file, variables

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class Command(Agent):
    """An agent that starts `argv` in a temporary folder, with the model and the task in environment
    variables; each call of an MCP tool is a step, and the program's final message is the last one.

    `argv`: a list, or a string with shell quoting. A word that names a file in the folder of `arl`
    becomes an absolute path. `env`: further variables for the program, "NAME" or "NAME=VALUE".
    `mcp`: whether to offer the environment's tools (needs the extra `mcp`).
    `preset`: a name of `presets.PRESETS`, as in `command:claude-code`. It sets what that program
    needs; `argv` is then optional: another path of the program, and further arguments.
    `own_tools`: whether a preset's program may use its own tools too, on this machine.
    `inside`: whether to start the program in the sandbox of the environment, with its own tools
    alone, instead of on this machine; it has to be in the sandbox's image.
    """

    def __init__(
        self,
        *,
        argv: Sequence[str] | str = (),
        env: Sequence[str] = (),
        mcp: bool = True,
        preset: str = "",
        own_tools: bool = False,
        inside: bool = False,
    ) -> None:
        words = shlex.split(argv) if isinstance(argv, str) else list(argv)
        if not (words or preset) or not all(isinstance(word, str) for word in words):
            raise ConfigError(f"argv: got {argv!r}, expected a program and its arguments")
        if isinstance(env, str):
            raise ConfigError(f"env: got {env!r}, expected a list of NAME or NAME=VALUE")
        self._own = own_variables(env)
        self._preset = _preset(preset, own_tools=own_tools or inside) if preset else None
        self._inside = inside
        if self._preset:
            mcp = mcp and self._preset.takes_mcp
            words = words or [self._preset.program]
        if inside:
            self.argv, self._mcp, self._own_tools = words, False, True
            return
        path = search_path(self._own)
        self.argv = [_found(words[0], path, self._preset), *map(_absolute, words[1:])]
        self._mcp, self._own_tools = mcp, own_tools
        if mcp:
            needed_by = "command, to offer tools (--agent.options.mcp=false does without),"
            import_extra("mcp.server.streamable_http_manager", extra="mcp", needed_by=needed_by)

    async def run(self, env: Env, client: AsyncOpenAI, *, model: str, task: Task) -> None:
        try:
            await self._run(env, client, model=model, task=task)
        except BaseExceptionGroup as group:  # one cause, nested in the groups of several tasks
            raise _only(group) from None

    async def _run(self, env: Env, client: AsyncOpenAI, *, model: str, task: Task) -> None:
        messages, _ = await env.reset()
        tools, calls = EnvTools(env), Calls()
        if self._inside:
            environ = {**episode_variables(Path(FOLDER), client, model=model), **self._own}
            answer = await run_inside(
                await env.open_sandbox(),
                self.argv,
                self._preset,
                environ,
                task_file=task_file(task_id=task.id, messages=messages, tools=[]),
                prompt=_prompt(messages),
            )
            await tools.say({"role": "assistant", "content": answer})
            return
        async with AsyncExitStack() as stack:
            try:
                folder = _folder(stack, task, messages, tools)
                url = await self._serve(stack, tools, calls)
            except OSError as error:  # no space, no handles
                raise InfraError(f"a program cannot be given its task: {error}") from error
            about = episode_variables(folder, client, model=model)
            environ = variables(about, mcp_url=url, own=self._own)
            start, launch = self._start(folder, environ, messages)
            program = stack.enter_context(running(start, max_bytes=MAX_BYTES))
            await _play(program, tools, calls)
            if tools.ended:
                return
            answer = _answer(program, folder / "answer.txt", launch)
        await tools.say({"role": "assistant", "content": answer})

    def _start(
        self, folder: Path, environ: Mapping[str, str], messages: Sequence[Message]
    ) -> tuple[Start, Launch]:
        """Return the way to start the program in the folder of its episode."""
        if self._preset is None:
            return Start(argv=self.argv, cwd=folder, env=environ), Launch()
        prompt, own_tools = _prompt(messages), self._own_tools
        start, launch = preset_start(
            self._preset, self.argv, folder, environ, prompt=prompt, own_tools=own_tools
        )
        return replace(start, env={**start.env, **self._own}), launch

    async def _serve(self, stack: AsyncExitStack, tools: EnvTools, calls: Calls) -> str:
        """Serve the tools while the stack is open; return their URL, empty if none are offered."""
        if not (self._mcp and tools.specs):
            return ""
        return await stack.enter_async_context(serving_tools(tools.specs, calls))


def _prompt(messages: Sequence[Message]) -> str:
    return "\n\n".join(map(text_of, messages))


def _folder(
    stack: AsyncExitStack, task: Task, messages: Sequence[Message], tools: EnvTools
) -> Path:
    """Make a folder with the task file, removed when the stack closes."""
    made = TemporaryDirectory(prefix="arl-agent-", ignore_cleanup_errors=True)
    folder = Path(stack.enter_context(made))
    text = task_file(task_id=task.id, messages=messages, tools=tools.specs)
    (folder / "task.json").write_bytes(text)
    return folder


async def _play(program: Program, tools: EnvTools, calls: Calls) -> None:
    """Execute the program's calls until the episode ends or the program exits with code 0.

    Raises:
        AgentError: the program failed.
    """
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(program.wait(), name="program")
        ending.add_done_callback(lambda _: calls.close())
        while (call := await calls.next()) is not None:
            call.reply(await tools.call(call.name, call.arguments))
            if tools.ended:
                ending.cancel()
                return
    if (code := ending.result()) != 0:
        errors = program.stderr[-TAIL_CHARS:].strip() or "nothing on standard error"
        raise AgentError(f"the program {_end(code)}; it said: {errors}")


def _only(group: BaseExceptionGroup) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _end(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _answer(program: Program, file: Path, launch: Launch) -> str:
    """Return the final message: the content of `file` if it exists, else standard output, as the
    preset reads it."""
    if file.is_file():
        with file.open("rb") as opened:
            found = opened.read(MAX_BYTES + 1)
        too_long, text = len(found) > MAX_BYTES, found.decode(errors="replace")
    else:
        too_long, text = program.wrote_too_much, program.stdout
    if too_long:
        raise AgentError(f"the program's final message is longer than {MAX_BYTES} bytes")
    if launch.answer and not file.is_file():
        if launch.answer_file:
            source = Path(launch.answer_file)
            text = source.read_text(errors="replace") if source.is_file() else ""
        text = launch.answer(text)
    return text.strip()


def _preset(name: str, *, own_tools: bool) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f"preset: got {name!r}, expected one of {', '.join(PRESETS)}")
    found = PRESETS[name]
    if not (found.takes_mcp or own_tools):
        raise ConfigError(
            f"command:{name} has no way to the environment's tools; it uses only its own, on this "
            "machine: --agent.options.own_tools=true allows that"
        )
    return found


def _found(program: str, path: str, preset: Preset | None) -> str:
    found = shutil.which(program, path=path)
    if found is None:
        remedy = f"; to install it: {preset.install}" if preset else ""
        raise ConfigError(f"argv: there is no program {program!r} on PATH ({path}){remedy}")
    return str(Path(found).absolute())


def _absolute(word: str) -> str:
    """Make the path of an existing file absolute: the program runs in another folder."""
    return os.path.abspath(word) if os.path.isfile(word) else word
