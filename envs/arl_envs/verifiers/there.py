"""The program that runs in the Python with verifiers; it imports nothing of ours.

A request is a line of JSON on standard input, {"id", "call", "args", "timeout_s", "at_once"}; its
answer is one on the original standard output, {"id", "value"} or {"id", "error", "kind"}. Answer 0,
sent without a request, reports that the program is ready. The process ends with its input.

The taskset's code may run for long without a pause, so calls wait for their turns: `at_once` calls
run together. {"id", "started", "call"} reports the start of a turn and its limit in seconds, so
that the wait for other calls does not count. "open" in an answer is the number of episodes that
wait for a reply.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

VERSION = "0.4"
READ_S = 600.0
"""The time limit for reading a taskset, which may have to download its data."""
Send = Callable[[dict[str, Any]], None]


# ---------------------------------------------------------------------- lines
async def answer(calls: Any, group: asyncio.TaskGroup, request: dict[str, Any], send: Send) -> None:
    is_quick = calls.is_quick(request["call"], request["args"]["source"])
    async with contextlib.nullcontext() if is_quick else _turn(request["at_once"]):
        found = await _answered(calls, group, request, send)
        send({"id": request["id"], "open": calls.open_plays(), **found})


_TURNS: dict[int, asyncio.Semaphore] = {}


def _turn(at_once: int) -> asyncio.Semaphore:
    return _TURNS.setdefault(at_once, asyncio.Semaphore(at_once))


async def _answered(
    calls: Any, group: asyncio.TaskGroup, request: dict[str, Any], send: Send
) -> dict[str, Any]:
    def started(limit_s: float) -> None:
        send({"id": request["id"], "started": limit_s, "call": request["call"]})

    limit = asyncio.timeout(None)
    try:
        if not calls.has_read(request["args"]["source"]) and request["call"] != "leave":
            started(READ_S)
            calls.read(request["args"]["source"])
        started(request["timeout_s"])
        async with limit:
            limit.reschedule(asyncio.get_running_loop().time() + request["timeout_s"])
            return {"value": await calls.CALLS[request["call"]](group=group, **request["args"])}
    except calls.UnplayableError as error:
        return {"kind": "config", "error": str(error)}
    except calls.Lost as error:
        return {"kind": "lost", "error": str(error)}
    except Exception as error:  # from the taskset's own code
        kind = "timeout" if limit.expired() else "env"
        return {"kind": kind, "error": "too slow" if limit.expired() else _described(error)}


def _described(error: BaseException) -> str:
    cause = error.__cause__ or error  # verifiers wraps the errors of a task
    places = traceback.extract_tb(cause.__traceback__)
    place = f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
    return f"{type(cause).__name__}: {cause}{place}"


async def serve(calls: Any, lines: Any, send: Send) -> None:
    loop, requests = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any]]()

    def read() -> None:
        for line in lines:
            loop.call_soon_threadsafe(requests.put_nowait, json.loads(line))
        os._exit(0)  # the other process is gone, whatever still runs here

    threading.Thread(target=read, daemon=True).start()
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(answer(calls, group, await requests.get(), send))


def main() -> None:
    # Tasksets may use standard input and output: the protocol has descriptors of its own.
    lines, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path.append(os.getcwd())

    def send(found: dict[str, Any]) -> None:
        print(json.dumps(found), file=out, flush=True)

    try:
        import verifiers.v1  # noqa: F401 (takes seconds: all of it before the first request)
    except ImportError as error:
        how = f"{sys.executable} -m pip install verifiers=={VERSION}.0"
        text = f"it cannot be imported there ({error}): {how}"
        send({"id": 0, "kind": "config", "error": text})
        return
    version = metadata.version("verifiers")
    if not version.startswith(f"{VERSION}."):
        text = f"it is {version} there, {VERSION} is what can be played"
        send({"id": 0, "kind": "config", "error": text})
        return
    calls = _inside("calls")
    send({"id": 0, "value": version})
    asyncio.run(serve(calls, lines, send))


def _inside(name: str) -> Any:
    """Import a module of the folder `inside`, whose neighbours are not on the path of tasksets."""
    package, folder = "arl_verifiers_inside", Path(__file__).with_name("inside")
    spec = importlib.util.spec_from_file_location(package, folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[package] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return importlib.import_module(f"{package}.{name}")


if __name__ == "__main__":
    main()
