"""The calls that the other process makes: for the tasks of a taskset, and for episodes."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import sys
import uuid
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.utils import loaders

from .plays import Event, Play, Shared, UnplayableError, check, opening, paying, seats_of


class Lost(Exception):
    """The error of an unknown episode: the process that played it has ended."""


class Played:
    """A taskset whose tasks have been read, and the environment that plays them."""

    def __init__(
        self,
        taskset: str,
        config: dict[str, Any],
        num_tasks: int | None,
        env: dict[str, Any] | None = None,
    ) -> None:
        self.env = _environment(taskset, config, env or {})
        self.seats = seats_of(self.env)
        found = self.env.taskset
        if num_tasks is None and not found.bounded:
            raise UnplayableError(
                f"{taskset} has no end: say how many of its tasks, as num_tasks=1000"
            )
        self.shared = Shared(found)
        self.tasks: list[Any] = list(itertools.islice(found, num_tasks))
        is_plain = type(self.env) is vf.SingleAgentEnv
        self.is_one_reply = is_plain and not self.shared.servers
        """True if an episode is a prompt and a reply, so that it needs no state in between."""
        for task in self.tasks[:1]:  # a taskset has tasks of one type
            check(task)
            if is_plain and not paying(task):
                raise UnplayableError(f"{type(task).__name__} has no reward")
            self.is_one_reply &= not task.toolsets(task.config)
        for task in self.tasks:
            if is_plain and not task.data.prompt:
                raise UnplayableError(f"task {task.data.idx} has no prompt, and no user to begin")
        self.prompts = [opening(task.data) for task in self.tasks]
        self.digests = list(map(_digest, self.prompts if self.is_one_reply else self.tasks))

    async def play(self, index: int, group: asyncio.TaskGroup) -> tuple[Play, Event]:
        """Begin an episode; return it with the first messages of the environment."""
        await self.shared.ready()
        play = Play(self.env, self.tasks[index], self.shared)
        play.start(group)
        return play, await play.event()


def _digest(asked: Any) -> str:
    """Return the hash of a prompt, or of a task: episodes of many turns may all begin alike."""
    content = (
        asked if isinstance(asked, list) else asked.data.model_dump(mode="json", exclude={"idx"})
    )
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


_PLAYED: dict[str, Played] = {}
_PLAYS: dict[str, Play] = {}


def has_read(source: dict[str, Any]) -> bool:
    """Return whether the taskset has been read, so that a request for it is quick."""
    return _key(source) in _PLAYED


def is_quick(call: str, source: dict[str, Any]) -> bool:
    """Return whether a call runs no code of the taskset, and so need not wait for its turn."""
    if call == "leave":
        return True
    return has_read(source) and (
        call in ("digests", "seats") or (call == "ask" and read(source).is_one_reply)
    )


def read(source: dict[str, Any]) -> Played:
    """Return the taskset; the first call reads it.

    Raises:
        UnplayableError: the taskset is missing, does not take its config, or cannot be played.
    """
    key = _key(source)
    if key not in _PLAYED:
        _PLAYED[key] = Played(**source)
    return _PLAYED[key]


def _key(source: dict[str, Any]) -> str:
    return json.dumps(source, sort_keys=True)


# ---------------------------------------------------------------------- calls
async def digests(source: dict[str, Any], group: asyncio.TaskGroup) -> list[str]:
    """Return the hash of each task's prompt, in order."""
    return read(source).digests


async def seats(source: dict[str, Any], group: asyncio.TaskGroup) -> list[str]:
    """Return the names of the agents."""
    return read(source).seats


async def ask(source: dict[str, Any], group: asyncio.TaskGroup, index: int, digest: str) -> Event:
    """Return the first event of a task; `episode` is None if only a score follows."""
    found = read(source)
    if found.digests[index] != digest:
        raise ValueError(
            "it asks something else than when it was listed: does load() give the same tasks "
            "each time?"
        )
    if found.is_one_reply:
        (seat,) = found.seats
        messages = {seat: found.prompts[index]}
        return {"seat": seat, "messages": messages, "tools": [], "episode": None}
    play, event = await found.play(index, group)
    if event["seat"] is None:
        raise ValueError("the environment ended the episode before it asked its agent")
    name = uuid.uuid4().hex
    _PLAYS[name] = play
    return event | {"episode": name}


async def act(
    source: dict[str, Any],
    group: asyncio.TaskGroup,
    index: int,
    episode: str | None,
    reply: Event,
) -> Event:
    """Return the next event after the reply of the seat whose turn it was."""
    if episode is None:
        play, _ = await read(source).play(index, group)
    elif episode in _PLAYS:
        play = _PLAYS.pop(episode)
    else:
        raise Lost("the process that played this episode has ended")
    event = await play.event(reply)
    if event["seat"] is not None and episode is not None:
        _PLAYS[episode] = play
    return event


async def leave(source: dict[str, Any], group: asyncio.TaskGroup, episode: str) -> None:
    """End an episode without a score."""
    if (play := _PLAYS.pop(episode, None)) is not None:
        play.leave()


CALLS = {"digests": digests, "seats": seats, "ask": ask, "act": act, "leave": leave}


def open_plays() -> int:
    """Return the number of episodes that wait for a reply."""
    return len(_PLAYS)


# ---------------------------------------------------------------------- verifiers' own loaders
def _environment(name: str, config: dict[str, Any], env: dict[str, Any]) -> Any:
    if name.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(name))
        if folder not in sys.path:
            sys.path.insert(0, folder)
        name = file.removesuffix(".py")
    try:
        kind = vf.taskset_config_type(name)
        whole = loaders.env_config_type(name, str(env.get("id", "")))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UnplayableError(f"{type(error).__name__}: {error}") from error
    try:
        of_taskset = kind.model_validate({**config, "id": name})
    except ValidationError as error:
        takes = ", ".join(sorted(set(kind.model_fields) - {"id"}))
        raise UnplayableError(
            f"{name} does not take this config; it takes {takes}: {error}"
        ) from error
    try:
        return loaders.load_environment(whole.model_validate({**env, "taskset": of_taskset}))
    except ValidationError as error:
        takes = ", ".join(sorted(set(whole.model_fields) - {"taskset"}))
        raise UnplayableError(f"its env takes {takes}: {error}") from error
