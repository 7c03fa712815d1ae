"""How a user reaches engines and workers of a living run: private HTTP, JSON.

    GET  /engines                                200 {"engines": [a Member]}
    POST /engines/add     {"count": n} | {"url"}  200 {"joined": [a Joined]}, once they serve
    POST /engines/remove  {"engine": name or url} 200 {"removed": name}, once it is gone
    GET  /workers                                200 {"workers": [a WorkerMember]}
    POST /workers/add     {"count": n}            200 {"joined": [a WorkerJoined]}, once they play
    POST /workers/remove  {"worker": name}        200 {"removed": name}, once it is gone

On the controller's port. 400 what cannot be, 409 what cannot be now, 401 another token.
`control.json` in the run's folder says where, to its owner alone; it is there as long as the run
lives.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from agentgym_rl.config import Config
from agentgym_rl.core.errors import ArlError, ConfigError
from agentgym_rl.fleet.members import Members
from agentgym_rl.runtime.http_server import (
    App,
    BodyTooLarge,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    reply,
)
from agentgym_rl.workers.elastic import ElasticWorkers

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


class ElasticApi:
    """The ASGI app; what is about neither is for `others`, with tokens of its own."""

    def __init__(
        self,
        members: Members,
        workers: Callable[[], ElasticWorkers],
        *,
        token: str,
        others: App,
    ) -> None:
        """`workers` raises ConfigError where the run has none, InfraError while none is there."""
        self._members = members
        self._workers = workers
        self._token = token
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if path.split("/")[1:2] not in [[root] for root in _ROOTS]:
            return await self._others(scope, receive, send)
        try:
            status, found = await self._route(scope, receive)
        except ConnectionError:
            return  # whoever asked is gone
        except (ConfigError, BodyTooLarge, msgspec.MsgspecError) as error:
            status, found = 400, {"error": str(error)}
        except (ArlError, TimeoutError) as error:
            status, found = 409, {"error": str(error) or repr(error)}
        except Exception as error:  # it is told to whoever asked, and the run goes on
            log.exception("%s %s failed", scope["method"], path)
            status, found = 500, {"error": f"the run failed to answer: {error!r}"}
        await reply(send, status, msgspec.json.encode(found))

    async def _route(self, scope: Scope, receive: Receive) -> tuple[int, object]:
        given = header(scope, b"authorization").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return 401, {"error": "unknown token"}
        match scope["method"], scope["path"]:
            case "GET", "/engines":
                return 200, {"engines": await self._members.all()}
            case "POST", "/engines/add":
                add = await _read(receive, _Add)
                return 200, {"joined": await self._members.add(count=add.count, url=add.url)}
            case "POST", "/engines/remove":
                remove = await _read(receive, _Remove)
                return 200, {"removed": await self._members.remove(remove.engine)}
            case "GET", "/workers":
                return 200, {"workers": self._workers().all()}
            case "POST", "/workers/add":
                more = await _read(receive, _AddWorkers)
                return 200, {"joined": await self._workers().add(more.count)}
            case "POST", "/workers/remove":
                less = await _read(receive, _RemoveWorker)
                return 200, {"removed": await self._workers().remove(less.worker)}
            case method, path:
                return 404, {"error": f"no route {method} {path}"}


async def _read(receive: Receive, kind: type[T]) -> T:
    return msgspec.json.decode(await read_body(receive, limit_bytes=_LIMIT_BYTES), type=kind)


@contextlib.contextmanager
def told(run_dir: Path, config: Config, *, url: str, token: str) -> Iterator[None]:
    """Say in the run's folder where it is reached, to its owner alone, as long as this lasts."""
    file = run_dir / FILE
    timeout_s = 2 * config.own_engine.start_timeout_s + 4 * config.weights.update_timeout_s
    timeout_s += config.rollout.episode_timeout_s  # a worker that leaves plays what it has
    found = {"url": url, "token": token, "pid": os.getpid(), "timeout_s": timeout_s}
    beside = file.with_name(f".{FILE}.{os.getpid()}")
    beside.unlink(missing_ok=True)  # of a run that died, and had this process's number
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(json.dumps(found) + "\n")
    beside.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
