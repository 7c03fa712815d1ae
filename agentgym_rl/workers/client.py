"""A rollout worker's side of the controller's private HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TypeVar

import aiohttp
import msgspec

from agentgym_rl.core.errors import ArlError
from agentgym_rl.core.messages import Lease, NumberedView, Told
from agentgym_rl.core.trajectory import Trajectory

log = logging.getLogger(__name__)

T = TypeVar("T")

_CALL_TIMEOUT_S = 30.0
"""Longest wait for one answer; the controller answers its long polls well before."""
_TRY_FOR_S = 60.0
"""How long a call that does not come through is made again: everything here may be said twice."""
_PAUSE_S = 0.2
"""Between two calls of which the first did not come through."""


class RunEnding(Exception):
    """The controller says that the run is over: nothing more is to be played."""


class CutOff(ArlError):
    """The controller has given this worker up: what it plays counts no more."""


class LeaseLost(Exception):
    """The controller has given the group to another worker, or it is finished."""


class HubError(ArlError):
    """The controller is gone, or refuses what was sent."""


class HubClient:
    """Asks the controller at `url` what to play; `token` is the secret of this worker's life."""

    def __init__(self, url: str, token: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._session = session

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, url: str, token: str) -> AsyncIterator[HubClient]:
        """With connections that end with the context."""
        timeout = aiohttp.ClientTimeout(total=_CALL_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)  # who finishes an episode waits for nobody
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            yield cls(url, token, session)

    async def ready(self) -> None:
        """This worker plays what it is given from now on."""
        await self._call("/ready")

    async def follow(self, told: Told) -> NumberedView | None:
        """The engines, if there is news of them; waits a second for some."""
        body = await self._call("/follow", msgspec.msgpack.encode(told))
        return _decoded(body, NumberedView) if body else None

    async def lease(self) -> Lease | None:
        """A group to be played; waits for one. None: there is none yet, ask again."""
        body = await self._call("/lease")
        return _decoded(body, Lease) if body else None

    async def finished(self, member: Trajectory) -> None:
        """An episode has been played; the run's log has it when this returns.

        Raises:
            LeaseLost: its group is not this worker's (any more).
        """
        await self._call("/member", member.pack())

    async def _call(self, path: str, body: bytes = b"") -> bytes:
        """What the controller answers; "" to that there is nothing.

        Raises:
            RunEnding, CutOff, LeaseLost: it says so.
            HubError: it does not answer, or refuses.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + _TRY_FOR_S
        while True:
            try:
                async with self._session.post(
                    self._url + path, data=body, headers=self._headers
                ) as reply:
                    status, answer = reply.status, await reply.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                status, answer = 0, f"{type(error).__name__}: {error}".encode()
            match status:
                case 200 | 204:
                    return answer
                case 401:
                    raise CutOff("the controller has given this worker up: it was lost, or late")
                case 409:
                    raise LeaseLost(answer.decode(errors="replace"))
                case 410:
                    raise RunEnding
                case _:
                    said = answer[:500].decode(errors="replace")
            what = f"controller {self._url}{path}: {f'HTTP {status}: ' if status else ''}{said}"
            if status not in (0, 503) or clock() >= deadline:
                raise HubError(what)
            log.info("%s; asking again", what)
            await asyncio.sleep(_PAUSE_S)


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise HubError(f"the controller sent no {kind.__name__}: {error}") from error
