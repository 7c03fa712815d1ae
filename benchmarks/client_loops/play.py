"""A client's session on a scripted model: the rows that it makes, and the tokens that do not
train."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from agentgym_rl import Agent, AgentError, Env, Step, Task
from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Row, Sampler
from agentgym_rl.core.token_records import FORCED
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionRecord, SessionSampling
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import Receive, Scope, Send
from benchmarks.exactness_loops import views
from benchmarks.exactness_loops.views import View

MAX_MODEL_LEN = 400_000
SAMPLING = SessionSampling(max_tokens=512, temperature=1.0, seed=5)
CLIENT_S = 120.0
"""The deadline of a client's session."""
MODEL = "policy"
PROMPT = "Do the task with your tools."
SIDE = "A short title"
"""The reply to a request outside the conversation."""
_WORK = re.compile(r"/[\w/.-]*arl-agent-\w+/work")


def call(name: str, **arguments: Any) -> str:
    """Return a tool call as the bundled model writes it; `WORK` is the client's working folder."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


@dataclass(frozen=True, kw_only=True)
class Case:
    """The replies of the model to a client, and the evidence that the client acted on them."""

    replies: Sequence[str]
    tool: str = ""
    """A tool that only the main conversation offers; other requests are answered by `SIDE`."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools of the environment."""
    shows: str = ""
    """A text of the last prompt, which shows that the tools worked."""


@dataclass(kw_only=True)
class Played:
    """A played session."""

    record: SessionRecord
    wrong: Mapping[str, int]
    """The differences of the rows from the engine's journal, counted by field."""
    said: str
    """The final message of the client."""
    error: str
    refused: Sequence[str]
    """The gateway's errors."""
    unused: int
    """The number of replies that the client did not request."""
    shown: bool
    """Whether the prompts have the text that shows the client's work."""
    requests: Sequence[tuple[str, bytes]]
    """The requests of the client: method and path, and the body."""

    @property
    def rows(self) -> int:
        return len(self.record.rows)

    @property
    def forks(self) -> dict[str, int]:
        """Return the forks by cause."""
        found = self.record.counters
        return {n: c for n, c in found.items() if n.startswith("forks_") and c}

    @property
    def trained_share(self) -> float:
        """Return the trained share of the sampled tokens that had an alternative."""
        found = self.record.counters
        free = found["sampled_tokens"] - found["single_choice_tokens"]
        return found["trained_tokens"] / free if free else 0.0


class Tools(Env):
    """An environment with a tool `lookup` that accepts a final message."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self.tools = tuple(tools)  # type: ignore[assignment]
        self.said = ""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return [{"role": "user", "content": PROMPT}], {}

    async def step(self, action: Any) -> Step:
        if calls := action.get("tool_calls"):
            given = calls[0]["function"]["arguments"]
            found = {
                "role": "tool",
                "tool_call_id": calls[0]["id"],
                "content": f"found: {given} ✓",
            }
            return Step([found], 0.0, False, False, {})
        self.said = str(action["content"])
        return Step([], 1.0, True, False, {})


class Script:
    """The model: the replies in turn to the main conversation, `SIDE` to every other request."""

    def __init__(self, case: Case, chat: ChatFormat) -> None:
        self._tool, self._chat = case.tool, chat
        self._replies = list(case.replies)

    @property
    def unused(self) -> int:
        return len(self._replies)

    def __call__(self, prompt: Sequence[int]) -> list[int]:
        text = self._chat.text(list(prompt))
        is_main = not self._tool or f'"name": "{self._tool}"' in text
        said = self._replies.pop(0) if is_main and self._replies else SIDE
        if "WORK" in said and (found := _WORK.search(text)):
            said = said.replace("WORK", found[0])
        return self._chat.encode(f"{said}<|im_end|>")


class RequestLog:
    """An app that keeps the requests, and the errors that answered them."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.requests: list[tuple[str, bytes]] = []
        self.errors: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, status = bytearray(), 0
        sent = bytearray()

        async def receiving() -> Any:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def sending(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            sent.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, receiving, sending)
        where = f"{scope['method']} {scope['path']}"
        self.requests.append((where, bytes(body)))
        if status >= 400:
            self.errors.append(f"{where}: {status} {sent.decode(errors='replace')[:600]}")


Views = Callable[[], dict[str, View]]
Opened = AbstractAsyncContextManager[tuple[Sampler, Views]]


async def played(
    agent: Callable[[Path], Agent],
    case: Case,
    chat: ChatFormat,
    *,
    opened: Opened | None = None,
    max_model_len: int = MAX_MODEL_LEN,
    sampling: SessionSampling = SAMPLING,
) -> Played:
    """Play a client's session to its end, on the scripted model or on an engine that is open."""
    script = Script(case, chat)
    env, error = Tools(case.tools), ""
    async with AsyncExitStack() as stack:
        engine, views = await stack.enter_async_context(opened or _scripted(script))
        gateway = Gateway(
            engine, chat, config=GatewayConfig(), model_name=MODEL, max_model_len=max_model_len
        )
        request_log = RequestLog(gateway.app)
        gateway.app = request_log
        clients = await stack.enter_async_context(_clients(gateway))
        session = gateway.open_session(sampling=sampling, session_id="e")
        session.main_tools = [str(tool["function"]["name"]) for tool in case.tools]
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="arl-client-")))
        try:
            async with asyncio.timeout(CLIENT_S):
                client = clients.for_session(session)
                await agent(folder).run(env, client, model=MODEL, task=Task("t", 0))
        except (AgentError, TimeoutError) as failed:
            error = f"{type(failed).__name__}: {failed}"
        record = gateway.close_session(session)
        names = [session.request_id(node.request) for node in session.tree.turns]
        recorded = views()
    return Played(
        record=record,
        wrong=differences(record.rows, names, recorded),
        said=env.said,
        error=error,
        refused=request_log.errors,
        unused=script.unused,
        shown=any(case.shows in chat.text(view.prompt) for view in recorded.values()),
        requests=request_log.requests,
    )


@asynccontextmanager
async def _clients(gateway: Gateway) -> AsyncIterator[AgentClients]:
    async with gateway.serve() as url, AgentClients(url) as clients:
        yield clients


@asynccontextmanager
async def _scripted(script: Script) -> AsyncIterator[tuple[Sampler, Views]]:
    engine = ScriptedEngine(script, max_model_len=MAX_MODEL_LEN)
    yield engine, lambda: views.scripted(engine.journal)


def differences(
    rows: Sequence[Row], names: Sequence[str], views: Mapping[str, View]
) -> Mapping[str, int]:
    """Count the differences of the rows from the engine's journal, by field.

    `names`: the requests of the turns. Each sampled token has to train in exactly one row, but for
    those without an alternative.
    """
    wrong: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    for row in rows:
        sampled = np.zeros(len(row), bool)
        for turn in dict.fromkeys(row.turn_ids[row.turn_ids >= 0].tolist()):
            view = views[names[turn]]
            here = slice(len(view.prompt), len(view.prompt) + len(view.ids))
            sampled[here] = True
            wrong["tokens"] += row.tokens[: here.stop].tolist() != [*view.prompt, *view.ids]
            logprobs = row.behavior_logprobs[here]
            wrong["logprobs"] += not np.array_equal(logprobs, np.float32(view.logprobs))
            wrong["versions"] += row.policy_versions[here].tolist() != view.versions
            forced = row.choices.index[here] == FORCED if row.choices else np.zeros(1, bool)
            mask = row.loss_mask[here]
            trained[names[turn]] += bool(mask.any())
            wrong["mask"] += bool(mask.any()) and not bool((mask == ~forced).all())
        wrong["mask"] += bool(row.loss_mask[~sampled].any())
    wrong["not_once"] = sum(trained[name] != 1 for name in names if views[name].ids)
    wrong["not_recorded"] = len(views.keys() - set(names))
    return +wrong


def load_chat() -> ChatFormat:
    """Return the format of the bundled model."""
    return ChatFormat.load(Path(BUNDLED))
