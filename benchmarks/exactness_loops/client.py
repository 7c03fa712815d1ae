"""An agent's client: it sends requests with the history as clients do, edits, retries, and hangs
up."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from .speech import TOOLS, Message, observed, tool, words

KINDS = {
    "go": 10, "again": 1, "retry": 1, "race": 1, "drop": 1, "leave": 1, "edit": 1, "edit_call": 1,
    "compact": 1, "summary": 1, "helper": 1, "samples": 1,
}  # fmt: skip
CUTS = ({"top_k": 20, "top_p": 0.9}, {"top_k": 40, "min_p": 0.02}, {"top_k": 3})
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/photo.png"}}
FORM = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": tool("")["function"]["parameters"]},
    }
}
STOPS = ("</tool_call>", " is", "\n", "12", "漢", "</think>", '"}')
_OVERFLOW = "context_length_exceeded"


class Overflow(Exception):
    """The error of a conversation that has outgrown the context."""


@dataclass
class Got:
    """A complete reply: its requests to the engine (one for each choice), and its data about
    them."""

    names: list[str]
    messages: list[Message]
    usage: dict[str, int]
    logprobs: list[list[float] | None]


@dataclass
class Client:
    """A client; `policy` has the fields that are the same in all of its requests."""

    http: aiohttp.ClientSession
    url: str
    key: str
    chance: random.Random
    with_tools: bool
    forces: bool
    """Whether it also demands calls and JSON."""
    policy: dict[str, Any] = field(default_factory=dict[str, Any])
    got: list[Got] = field(default_factory=list[Got])
    done: Counter[str] = field(default_factory=Counter[str])
    """The number of times of each of its actions and observations."""
    talks: list[tuple[bool, list[Message]]] = field(default_factory=list)
    """(whether a helper's, messages with the last reply)."""
    error: str = ""
    """The reason for a broken reply, which ends the episode and is a mismatch."""

    async def play(self, num_turns: int, *, plain: bool) -> None:
        """Play an episode; `plain`: one conversation that is only continued."""
        try:
            await self._ask(False, [{"role": "user", "content": self._words()}])
            for _ in range(num_turns - 1):
                kinds = ["go"] if plain else list(KINDS)
                weights = [KINDS[kind] for kind in kinds]
                await self._step(self.chance.choices(kinds, weights)[0])
        except* Overflow:
            self.done["overflows"] += 1
        except* (aiohttp.ClientError, RuntimeError) as group:
            self.done["broken_replies"] += 1
            self.error = repr(group.exceptions[0])

    async def _step(self, kind: str) -> None:
        recent = self.talks[-1:] if kind == "go" else self.talks[-3:]
        helper, talk = copy.deepcopy(self.chance.choice(recent))
        self.done[kind] += 1
        more = observed(talk[-1], self.chance)
        if more[-1]["role"] == "user" and self.chance.random() < 0.2:
            more[-1]["content"] = [{"type": "text", "text": more[-1]["content"]}, IMAGE]
        if kind == "again":
            await self._ask(helper, talk[:-1])
        elif kind == "samples":
            await self._ask(helper, self._echo(talk) + more, n=self.chance.choice([2, 3]))
        elif kind == "compact":
            so_far = {"role": "user", "content": f"So far: {self._words()}"}
            await self._ask(helper, [so_far, talk[-1], *more])
        elif kind == "summary":
            so_far = {"role": "user", "content": f"So far:\n{talk[-1].get('content')}\nGo on."}
            await self._ask(helper, [so_far])
        elif kind == "helper":
            await self._ask(not helper, [{"role": "user", "content": self._words()}])
        elif kind in ("retry", "race", "drop", "leave"):
            await self._ask(helper, self._echo(talk) + more, trouble=kind)
        else:
            if kind == "edit":
                _edit(self.chance.choice(talk), self._words())
            elif kind == "edit_call":
                _edit_call(talk[-1], self._words())
            await self._ask(helper, self._echo(talk) + more)

    async def _ask(
        self, helper: bool, messages: list[Message], *, trouble: str = "", **fields: Any
    ) -> None:
        body = self._body(helper, messages, fields)
        if trouble in ("drop", "leave"):
            body["stream"] = True
            await self._hang_up(body)
            if trouble == "leave":
                return
        if trouble == "race":
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(self._send(body))
                await asyncio.sleep(0.01)
                second = tasks.create_task(self._send(body, retry=1))
            got, same = first.result(), second.result()
        else:
            got = await self._send(body, retry=int(trouble == "drop"))
            same = await self._send(body, retry=1) if trouble == "retry" else got
        if (same.names, same.messages) != (got.names, got.messages):
            self.done["wrong_retries"] += 1
        self.got.append(got)
        self._note(body, got)
        self.talks.append((helper, [*messages, self.chance.choice(got.messages)]))

    def _body(
        self, helper: bool, messages: list[Message], fields: dict[str, Any]
    ) -> dict[str, Any]:
        chance = self.chance
        system = {"role": "system", "content": "Name it." if helper else "Solve ✓."}
        body: dict[str, Any] = {"model": "m", "messages": [system, *messages], **self.policy}
        if self.with_tools and not helper:
            body["tools"] = [tool(name) for name in TOOLS]
        if chance.random() < 0.15:
            body["max_tokens"] = chance.randrange(1, 16)
        if chance.random() < 0.2:
            body["stop"] = chance.sample(STOPS, chance.randrange(1, 3))
        if chance.random() < 0.2:
            body["logprobs"] = True
        if chance.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if chance.random() < 0.2:
            body |= chance.choice(CUTS)
        if self.forces and chance.random() < 0.2:
            # Some families refuse JSON together with tools: it may be a call.
            body |= {"tool_choice": "required"} if "tools" in body else FORM
        return body | fields

    def _echo(self, talk: list[Message]) -> list[Message]:
        """Return the conversation as some client would send it back."""
        for message in talk:
            if message["role"] == "assistant" and self.chance.random() < 0.5:
                _reformat(message, self.chance)
        return talk

    def _words(self) -> str:
        return words(self.chance, 7, literal=True)

    # ------------------------------------------------------------------ requests
    def _post(self, body: dict[str, Any], retry: int) -> Any:
        headers = {"authorization": f"Bearer {self.key}", "x-stainless-retry-count": str(retry)}
        return self.http.post(f"{self.url}/chat/completions", json=body, headers=headers)

    async def _send(self, body: dict[str, Any], retry: int = 0) -> Got:
        async with self._post(body, retry) as answer:
            data = await answer.read()
        if answer.status == 400 and json.loads(data)["error"]["code"] == _OVERFLOW:
            raise Overflow
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {data.decode()}")
        return _streamed(data) if body.get("stream") else _whole(json.loads(data))

    async def _hang_up(self, body: dict[str, Any]) -> None:
        """Send a request, read only the beginning of the reply, and close the connection."""
        async with self._post(body, 0) as answer:
            if answer.status == 400:
                raise Overflow
            if self.chance.random() < 0.7:
                await answer.content.readany()
            answer.close()

    def _note(self, body: dict[str, Any], got: Got) -> None:
        heard = json.dumps(body["messages"][-1]["content"], ensure_ascii=False)
        self.done["unicode heard"] += not heard.isascii()
        self.done["n>1"] += len(got.names) > 1
        self.done["streamed"] += bool(body.get("stream"))
        for message in got.messages:
            thought = message.get("reasoning_content") or ""
            self.done["thoughts"] += bool(thought)
            calls = message.get("tool_calls") or []
            self.done["thoughts before calls"] += bool(thought and calls)
            self.done["parallel calls"] += len(calls) > 1
            said = json.dumps(message, ensure_ascii=False)
            self.done["unicode said"] += not said.isascii()


# ---------------------------------------------------------------------- replies
def _names(reply_id: str, num_choices: int) -> list[str]:
    """Return the engine's request names of a request's choices, which are numbered."""
    start, _, number = reply_id.removeprefix("chatcmpl-").rpartition("-")
    return [f"{start}-{int(number) + index}" for index in range(num_choices)]


def _whole(body: dict[str, Any]) -> Got:
    choices = sorted(body["choices"], key=lambda choice: choice["index"])
    return Got(
        _names(body["id"], len(choices)),
        [choice["message"] for choice in choices],
        body["usage"],
        [_logprobs(choice) for choice in choices],
    )


def _streamed(data: bytes) -> Got:
    lines = [line[6:] for line in data.decode().split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]", "a stream without its end"
    events = [json.loads(line) for line in lines]
    if any("error" in event for event in events):
        raise RuntimeError(f"in a stream: {events[-1]}")
    said: dict[int, Message] = {}
    logprobs: dict[int, list[float] | None] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        message = said.setdefault(choice["index"], {"role": "assistant", "content": ""})
        delta = choice["delta"]
        for name in ("content", "reasoning_content", "reasoning"):
            if delta.get(name):
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            kept = {key: value for key, value in call.items() if key != "index"}
            message.setdefault("tool_calls", []).append(kept)
        logprobs[choice["index"]] = logprobs.get(choice["index"]) or _logprobs(choice)
    usage = next((event["usage"] for event in events if event.get("usage")), {})
    names = _names(events[0]["id"], len(said))
    return Got(names, [said[i] for i in sorted(said)], usage, [logprobs[i] for i in sorted(said)])


def _logprobs(choice: dict[str, Any]) -> list[float] | None:
    content = (choice.get("logprobs") or {}).get("content")
    return None if content is None else [entry["logprob"] for entry in content]


# ---------------------------------------------------------------------- what clients do to messages
def _reformat(message: Message, chance: random.Random) -> None:
    for name in ("reasoning_content", "reasoning"):
        if chance.random() < 0.5:
            message.pop(name, None)
    text = message.get("content")
    if isinstance(text, str):
        parts = [{"type": "text", "text": text}]
        message["content"] = chance.choice([text or None, text or "", f"{text}\n", parts])
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            continue
        separators = chance.choice([(",", ":"), (", ", ": ")])
        call["function"]["arguments"] = json.dumps(arguments, separators=separators)
        call["extra"] = {"of": "the client"}
    message["name_of_ours"] = "agent"


def _edit(message: Message, text: str) -> None:
    message["content"] = f"{text}!"


def _edit_call(message: Message, text: str) -> None:
    for call in message.get("tool_calls") or ():
        call["function"]["arguments"] = json.dumps({"expression": f"{text}!"})
