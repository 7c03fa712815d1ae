"""A judge's server whose replies are scripted, for judges of `arl_envs.judge`."""

import asyncio
import contextlib
import inspect
import json
import queue
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from arl_envs.judge import Judge

from agentgym_rl.runtime import read_body, serving
from agentgym_rl.runtime.http_server import reply

Decide = Callable[[dict[str, Any]], Any]
"""A function from a request to the content of its reply, or to (status, body); or to an awaitable
of them."""


class ScriptedJudge:
    """An OpenAI-compatible server. `requests` are those it got; `most` is their largest number at
    once."""

    def __init__(self, decide: Decide) -> None:
        self.decide = decide
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.most = 0
        self._open = 0

    def during(self, work: Callable[[str], Awaitable[Any]]) -> Any:
        """Return or raise the outcome of `work(url)`, while the server runs."""

        async def run() -> Any:
            async with asyncio.timeout(250), serving(self, host="127.0.0.1", port=0) as url:
                try:
                    return await work(url), None
                except Exception as error:  # outside, since a task group would wrap it
                    return None, error

        found, error = asyncio.run(run())
        if error is not None:
            raise error
        return found

    @contextlib.contextmanager
    def beside(self) -> Iterator[str]:
        """Serve in a thread of its own, for tests that wait without a loop; yield the URL."""
        urls: queue.Queue[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

        async def run() -> None:
            over = asyncio.Event()
            async with serving(self, host="127.0.0.1", port=0) as url:
                urls.put((url, asyncio.get_running_loop(), over))
                await over.wait()

        thread = threading.Thread(target=asyncio.run, args=[run()])
        thread.start()
        url, loop, over = urls.get(timeout=60)
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join(60)

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        body = await read_body(receive, limit_bytes=10_000_000)
        if scope["method"] != "POST":  # a proxy asks for the models
            await reply(send, 404, b"{}")
            return
        request = json.loads(body)
        self.requests.append({"path": scope["path"], **request})
        self.headers.append(dict(scope["headers"]))
        self._open += 1
        self.most = max(self.most, self._open)
        await asyncio.sleep(0)
        said = self.decide(request)
        if inspect.isawaitable(said):
            said = await said
        self._open -= 1
        if isinstance(said, tuple):
            status, body = said
            await reply(send, status, body)
            return
        choice = {"index": 0, "finish_reason": "stop", "message": {"content": said}}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        await reply(send, 200, json.dumps({"choices": [choice], "usage": usage}).encode())


def score(number: Any) -> str:
    return json.dumps({"score": number})


def quoted(request, name: str) -> str:
    """Return the text that a request quotes under a name."""
    text = request["messages"][1]["content"]
    return re.search(rf"BEGIN {name} (\w+)\n(.*)\nEND {name} \1$", text, re.S | re.M)[2]


def asking(decide, work, **settings):
    """Return the result of `work(judge)` with a scripted judge, and the server."""
    server = ScriptedJudge(decide)
    found = server.during(lambda url: work(Judge("m", base_url=f"{url}/v1", **settings)))
    return found, server
