"""The other end: runs in the Python that has verifiers, and imports nothing of ours.

A request is a line of JSON on standard input, {"id", "call", "args", "timeout_s", "at_once"}; its
answer one on what was standard output, {"id", "value"} or {"id", "error", "kind"}. Number 0,
unasked, says that it is ready. At the end of the input everything ends.

What may work for long without a pause, scoring and reading a taskset, waits for its turn: `at_once`
of them go on together. {"id", "started", "call"} says when a turn begins and how many seconds it
may take, so that waiting for others is held against nobody.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import itertools
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import metadata
from typing import Any

VERSION = "0.4"
READ_S = 600.0
"""A taskset may have to download its data."""
Say = Callable[[dict[str, Any]], None]


class Refused(Exception):
    """What is asked for is not there, or cannot be played so; the user has to change it."""


class Played:
    """A taskset whose tasks have been read."""

    def __init__(self, taskset: str, config: dict[str, Any], num_tasks: int | None) -> None:
        found = _taskset(taskset, config)
        if num_tasks is None and not found.bounded:
            raise Refused(f"{taskset} has no end: say how many of its tasks, as num_tasks=1000")
        if type(found).toolsets(found.config):
            raise Refused(f"{taskset} has tool servers: {NO_TOOLS}")
        self.tasks: list[Any] = list(itertools.islice(found, num_tasks))
        for task in self.tasks[:1]:  # a taskset has tasks of one type
            _check(task)
        self.prompts = [_messages(task.data) for task in self.tasks]
        self.digests = [
            hashlib.sha256(json.dumps(prompt).encode()).hexdigest() for prompt in self.prompts
        ]


NO_TOOLS = (
    "only tasks that are one prompt and one reply can be played (an MCP server can be attached to "
    "an environment with arl_envs.mcp.McpTools)"
)
_PLAYED: dict[str, Played] = {}


def _played(taskset: str, config: dict[str, Any], num_tasks: int | None) -> Played:
    key = _key(taskset, config, num_tasks)
    if key not in _PLAYED:
        _PLAYED[key] = Played(taskset, config, num_tasks)
    return _PLAYED[key]


def _key(taskset: str, config: dict[str, Any], num_tasks: int | None) -> str:
    return json.dumps([taskset, config, num_tasks], sort_keys=True)


# ---------------------------------------------------------------------- calls
async def digests(source: dict[str, Any]) -> list[str]:
    """Of each task's prompt, in order."""
    return _played(**source).digests


async def ask(source: dict[str, Any], index: int) -> dict[str, Any]:
    """The first messages of a task."""
    found = _played(**source)
    return {"messages": found.prompts[index], "digest": found.digests[index]}


async def score(source: dict[str, Any], index: int, reply: str) -> dict[str, Any]:
    """What the taskset makes of the conversation that ends with `reply`."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.decorators import invoke

    found = _played(**source)
    task = found.tasks[index]
    trace = _trace(task, found.prompts[index], reply)
    if type(task).setup is not vf.Task.setup:
        await invoke(task.setup, {"trace": trace})
    trace.stop("agent_completed")
    if type(task).finalize is not vf.Task.finalize:
        await invoke(task.finalize, {"trace": trace})
    await task.score(trace)
    return {
        "reward": trace.reward,
        "rewards": {name: each and each.value for name, each in trace.rewards.items()},
        "metrics": {name: each for name, each in trace.metrics.items() if each is not None},
    }


CALLS = {"digests": digests, "ask": ask, "score": score}


# ---------------------------------------------------------------------- verifiers' own words
def _taskset(name: str, config: dict[str, Any]) -> Any:
    import verifiers.v1 as vf
    from pydantic import ValidationError

    if name.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(name))
        if folder not in sys.path:
            sys.path.insert(0, folder)
        name = file.removesuffix(".py")
    try:
        kind = vf.taskset_config_type(name)
        own = vf.environment_class(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    if own is not vf.SingleAgentEnv:
        raise Refused(f"{name} brings an environment of its own, {own.__name__}: {NO_TOOLS}")
    try:
        return vf.load_taskset(kind.model_validate({**config, "id": name}))
    except ValidationError as error:
        takes = ", ".join(sorted(set(kind.model_fields) - {"id"}))
        raise Refused(f"{name} does not take this config; it takes {takes}: {error}") from error


def _check(task: Any) -> None:
    """Refuse what `Task.score` alone cannot play or would leave out."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.decorators import discover_decorated

    kind, name = type(task), type(task).__name__
    if kind.toolsets(task.config):
        raise Refused(f"{name} has tool servers: {NO_TOOLS}")
    if kind.NEEDS_CONTAINER or task.data.image:
        raise Refused(f"{name} needs a container: {NO_TOOLS}")
    if discover_decorated(task, "intercept"):
        raise Refused(f"{name} rewrites what the model says (@intercept): {NO_TOOLS}")
    paying = [*task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]
    if not paying:
        raise Refused(f"{name} has no reward")
    own = [kind.setup] * (kind.setup is not vf.Task.setup)
    own += [kind.finalize] * (kind.finalize is not vf.Task.finalize)
    for hook in [*own, *paying, *task.hooks("metric")]:
        runtime = inspect.signature(hook).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            raise Refused(f"{name}.{hook.__name__} needs a runtime: {NO_TOOLS}")


def _messages(data: Any) -> list[dict[str, str]]:
    if not data.prompt:
        raise Refused(f"task {data.idx} has no prompt, a user would have to start: {NO_TOOLS}")
    said = [] if data.system_prompt is None else [("system", data.system_prompt)]
    if isinstance(data.prompt, str):
        said.append(("user", data.prompt))
    else:
        said += [(message.role, _text(message, data.idx)) for message in data.prompt]
    return [{"role": role, "content": text} for role, text in said]


def _text(message: Any, index: int) -> str:
    parts = [message.content] if isinstance(message.content, str) else message.content or []
    texts = [part if isinstance(part, str) else getattr(part, "text", None) for part in parts]
    if message.role == "tool" or getattr(message, "tool_calls", None) or None in texts:
        raise Refused(f"the prompt of task {index} has tool calls or images: only text is played")
    return "\n".join(map(str, texts))


def _trace(task: Any, prompt: list[dict[str, str]], reply: str) -> Any:
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    agent = vf.AgentInfo(config=vf.AgentConfig())
    trace = vf.Trace(task=about, agent=agent, state=state_cls(type(task))())
    said = [*prompt, {"role": "assistant", "content": reply}]
    for number, message in enumerate(said):
        parent = number - 1 if number else None
        node = vf.MessageNode(parent=parent, message=message, sampled=number == len(prompt))
        trace.nodes.append(node)
    return trace


# ---------------------------------------------------------------------- lines
async def answer(request: dict[str, Any], say: Say) -> None:
    is_quick = request["call"] != "score" and _key(**request["args"]["source"]) in _PLAYED
    async with contextlib.nullcontext() if is_quick else _turn(request["at_once"]):
        say({"id": request["id"], **await _answered(request, say)})


_TURNS: dict[int, asyncio.Semaphore] = {}


def _turn(at_once: int) -> asyncio.Semaphore:
    return _TURNS.setdefault(at_once, asyncio.Semaphore(at_once))


async def _answered(request: dict[str, Any], say: Say) -> dict[str, Any]:
    def started(limit_s: float) -> None:
        say({"id": request["id"], "started": limit_s, "call": request["call"]})

    limit = asyncio.timeout(None)
    try:
        if _key(**request["args"]["source"]) not in _PLAYED:
            started(READ_S)
            _played(**request["args"]["source"])
        started(request["timeout_s"])
        async with limit:
            limit.reschedule(asyncio.get_running_loop().time() + request["timeout_s"])
            return {"value": await CALLS[request["call"]](**request["args"])}
    except Refused as error:
        return {"kind": "config", "error": str(error)}
    except Exception as error:  # the taskset's own code
        kind = "timeout" if limit.expired() else "env"
        return {"kind": kind, "error": "too slow" if limit.expired() else _words(error)}


def _words(error: BaseException) -> str:
    cause = error.__cause__ or error  # verifiers puts errors of its own around a task's
    places = traceback.extract_tb(cause.__traceback__)
    place = f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
    return f"{type(cause).__name__}: {cause}{place}"


async def serve(lines: Any, say: Say) -> None:
    loop, requests = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any]]()

    def read() -> None:
        for line in lines:
            loop.call_soon_threadsafe(requests.put_nowait, json.loads(line))
        os._exit(0)  # whoever asked is gone, whatever still runs

    threading.Thread(target=read, daemon=True).start()
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(answer(await requests.get(), say))


def main() -> None:
    # Tasksets may print and read as they like: the lines have handles of their own.
    lines, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path.append(os.getcwd())

    def say(found: dict[str, Any]) -> None:
        print(json.dumps(found), file=out, flush=True)

    try:
        import verifiers.v1  # noqa: F401 (takes seconds: all of it before the first request)
    except ImportError as error:
        how = f"{sys.executable} -m pip install verifiers=={VERSION}.0"
        text = f"it cannot be imported there ({error}): {how}"
        say({"id": 0, "kind": "config", "error": text})
        return
    version = metadata.version("verifiers")
    if not version.startswith(f"{VERSION}."):
        text = f"it is {version} there, {VERSION} is what can be played"
        say({"id": 0, "kind": "config", "error": text})
        return
    say({"id": 0, "value": version})
    asyncio.run(serve(lines, say))


if __name__ == "__main__":
    main()
