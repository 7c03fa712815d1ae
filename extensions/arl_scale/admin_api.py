"""The user's API for engines and workers of a live run: private HTTP, JSON.

    GET  /engines                                200 {"engines": [a Member]}
    POST /engines/add     {"count": n} | {"url"}  200 {"joined": [a Joined]}, once they serve
    POST /engines/remove  {"engine": name or url} 200 {"removed": name}, once it has ended
    GET  /workers                                200 {"workers": [a WorkerMember]}
    POST /workers/add     {"count": n}            200 {"joined": [a WorkerJoined]}, once they play
    POST /workers/remove  {"worker": name}        200 {"removed": name}, once it has ended

The API is on the controller's port. Errors: 400 invalid request, 409 not possible now, 401 wrong
token. `control.json` in the run's folder has the URL and token, readable only by its owner; it
exists as long as the run lives.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentgym_rl.core import ArlError, ConfigError, InfraError
from agentgym_rl.run import LivePart, TrainingRun
from agentgym_rl.runtime import (
    Api,
    App,
    BodyTooLarge,
    Receive,
    Scope,
    Send,
    is_secret,
    json_response,
    read_body,
    replacing,
)
from agentgym_rl.runtime.http_server import bearer
from arl_scale.keys import WorkerKeys
from arl_scale.members import Members
from arl_scale.workers.elastic import ElasticWorkers

log = logging.getLogger(__name__)

FILE = "control.json"
_LIMIT_BYTES = 10_000
T = TypeVar("T")
_ROOTS = ("engines", "workers")


class _Add(msgspec.Struct, forbid_unknown_fields=True):
    count: int = 1
    url: str = ""


class _Remove(msgspec.Struct, forbid_unknown_fields=True):
    engine: str


class _AddWorkers(msgspec.Struct, forbid_unknown_fields=True):
    count: int = 1


class _RemoveWorker(msgspec.Struct, forbid_unknown_fields=True):
    worker: str


class ElasticApi(Api):
    """The ASGI app; all other requests go to `others`, which has its own tokens."""

    def __init__(
        self,
        members: Members,
        workers: Callable[[], ElasticWorkers],
        *,
        token: str,
        others: App,
    ) -> None:
        """Set up the app. `workers` raises ConfigError if the run has no workers, and InfraError
        while they are not started."""
        routes = {
            "GET /engines": self._engines,
            "POST /engines/add": self._add_engines,
            "POST /engines/remove": self._remove_engine,
            "GET /workers": self._all_workers,
            "POST /workers/add": self._add_workers,
            "POST /workers/remove": self._remove_worker,
        }
        refused = dict.fromkeys((ConfigError, BodyTooLarge, msgspec.MsgspecError), 400)
        super().__init__(routes, statuses={**refused, ArlError: 409, TimeoutError: 409})
        self._members = members
        self._workers = workers
        self._token = token
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["path"].split("/")[1:2] in [[root] for root in _ROOTS]
        await (super().__call__ if ours else self._others)(scope, receive, send)

    def check(self, request: Request) -> None:
        if not is_secret(bearer(request), self._token):
            raise HTTPException(401, "unknown token")

    def failed(self, request: Request, error: Exception) -> str:
        # the client gets the error; the run continues
        log.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
        return f"the run failed to answer: {error!r}"

    def refusal(self, status: int, text: str) -> Response:
        return json_response({"error": text}, status)

    async def _engines(self, request: Request) -> Response:
        return json_response({"engines": await self._members.all()})

    async def _add_engines(self, request: Request) -> Response:
        add = await _read(request, _Add)
        return json_response({"joined": await self._members.add(count=add.count, url=add.url)})

    async def _remove_engine(self, request: Request) -> Response:
        remove = await _read(request, _Remove)
        return json_response({"removed": await self._members.remove(remove.engine)})

    async def _all_workers(self, request: Request) -> Response:
        return json_response({"workers": self._workers().all()})

    async def _add_workers(self, request: Request) -> Response:
        add = await _read(request, _AddWorkers)
        return json_response({"joined": await self._workers().add(add.count)})

    async def _remove_worker(self, request: Request) -> Response:
        remove = await _read(request, _RemoveWorker)
        return json_response({"removed": await self._workers().remove(remove.worker)})


async def _read(request: Request, kind: type[T]) -> T:
    body = await read_body(request.receive, limit_bytes=_LIMIT_BYTES)
    return msgspec.json.decode(body, type=kind)


@contextlib.contextmanager
def control_file(run_dir: Path, *, url: str, token: str, timeout_s: float) -> Iterator[None]:
    """Hold a file in the run's folder with the run's URL and token, readable only by its owner.
    `timeout_s`: the longest time that a request may take."""
    file = run_dir / FILE
    found = {"url": url, "token": token, "pid": os.getpid(), "timeout_s": timeout_s}
    with replacing(file, part=file.with_name(f".{FILE}.{os.getpid()}")) as part:
        part.touch(0o600, exist_ok=False)
        part.write_text(json.dumps(found) + "\n", encoding="utf-8")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


class Control(LivePart):
    """The part of each run that answers `arl engines` and `arl workers`."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self._token = secrets.token_hex(16)

    def app(self, others: App) -> App:
        config = self.run.config
        reserved = config.eval.scheduled + len(config.rollout.other_engines)
        members = Members(self.run.fleet, reserved=reserved)
        return ElasticApi(members, self._workers, token=self._token, others=others)

    @contextlib.contextmanager
    def reachable(self, url: str) -> Iterator[None]:
        config = self.run.config
        longest_s = 2 * config.own_engine.start_timeout_s + 4 * config.weights.update_timeout_s
        longest_s += config.rollout.patience_s  # a leaving worker ends its groups
        with control_file(self.run.run_dir, url=url, token=self._token, timeout_s=longest_s):
            yield

    def _workers(self) -> ElasticWorkers:
        if not self.run.config.of(WorkerKeys).workers:
            raise ConfigError(
                "this run has no rollout workers: `arl train` plays its groups itself "
                "(rollout.workers=0)"
            )
        if not isinstance(self.run.producer, ElasticWorkers):
            raise InfraError("the rollout workers are not started yet")
        return self.run.producer
