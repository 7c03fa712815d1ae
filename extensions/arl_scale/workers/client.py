"""The rollout worker's client of the controller's private HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from agentgym_rl.core import ArlError, Lease, NumberedView, Trajectory, WorkerReport
from agentgym_rl.runtime import HttpClient

log = logging.getLogger(__name__)

T = TypeVar("T")

_CALL_TIMEOUT_S = 30.0
"""The longest wait for one answer; the controller answers its long polls well before."""
_ANSWER_BYTES = 1 << 32
"""The longest answer, a lease with its task."""
_TRY_FOR_S = 60.0
"""The time for which a call that gets no answer is repeated: every call here is idempotent."""
_PAUSE_S = 0.2
"""The pause before a call is repeated."""


class RunEnding(Exception):
    """The end of the run, as reported by the controller: nothing more is to be played."""


class CutOff(ArlError):
    """The loss of this worker, as reported by the controller: its episodes no longer count."""


class LeaseLost(Exception):
    """The loss of a lease, as reported by the controller: another worker has the group, or it is
    finished."""


class ControllerError(ArlError):
    """An error because the controller is gone, or refuses a request."""


class LeasesClient:
    """A client of the controller at `url`; `token` is the secret of this worker's life."""

    def __init__(self, url: str, token: str, http: HttpClient) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._http = http

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, url: str, token: str) -> AsyncIterator[LeasesClient]:
        """Open a client whose connections are closed with the context."""
        async with HttpClient() as http:
            yield cls(url, token, http)

    async def ready(self) -> None:
        """Report that this worker can play groups from now on."""
        await self._call("/ready")

    async def follow(self, report: WorkerReport) -> NumberedView | None:
        """Return the engines, if there is news of them within a second."""
        body = await self._call("/follow", msgspec.msgpack.encode(report))
        return _decoded(body, NumberedView) if body else None

    async def lease(self) -> Lease | None:
        """Wait for a group to play and return it. None: there is none yet, call again."""
        body = await self._call("/lease")
        return _decoded(body, Lease) if body else None

    async def finished(self, member: Trajectory) -> None:
        """Deliver a played episode; the run's log has it when this returns.

        Raises:
            LeaseLost: the episode's group is not leased to this worker (any more).
        """
        await self._call("/member", member.pack())

    async def _call(self, path: str, body: bytes = b"") -> bytes:
        """Return the body of the controller's answer; empty if it has nothing to report.

        Raises:
            RunEnding, CutOff, LeaseLost: the controller reported it.
            ControllerError: the controller does not answer, or refuses.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + _TRY_FOR_S
        while True:
            try:
                status, answer = await self._http.call(
                    *(self._url, "POST", path),
                    body=body,
                    headers=self._headers,
                    timeout_s=_CALL_TIMEOUT_S,
                    max_bytes=_ANSWER_BYTES,
                )
            except OSError as error:
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
                    reason = answer[:500].decode(errors="replace")
            what = f"controller {self._url}{path}: {f'HTTP {status}: ' if status else ''}{reason}"
            if status == 503:  # alive, and waiting for its log or for a teacher, with a deadline
                deadline = clock() + _TRY_FOR_S
            if status not in (0, 503) or clock() >= deadline:
                raise ControllerError(what)
            log.info("%s; asking again", what)
            await asyncio.sleep(_PAUSE_S)


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ControllerError(f"the controller sent no {kind.__name__}: {error}") from error
