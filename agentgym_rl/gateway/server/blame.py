"""The cause of a failed turn: it is recorded in the session and sent to the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from agentgym_rl.core import ContextLengthError, EngineError, too_slow
from agentgym_rl.gateway.errors import (
    ApiError,
    bad_request,
    engine_failed,
    session_closed,
    turn_timed_out,
)
from agentgym_rl.gateway.retries_and_hangups import ClientGone
from agentgym_rl.gateway.session.session import Session

_log = logging.getLogger(__name__)


@contextmanager
def blamed(session: Session) -> Iterator[None]:
    """Record the cause of a failed turn in the session, and raise the client's error."""
    try:
        yield
    except BaseException as error:
        failure = _recorded(session, error)
        if failure is None:
            raise
        raise failure from error


def _recorded(session: Session, error: BaseException) -> ApiError | None:
    """Record an error, and return the error for the client; None: raise `error` itself."""
    if isinstance(error, ClientGone | asyncio.CancelledError):
        session.counters["undelivered_turns"] += 1
        return None
    if isinstance(error, ApiError):
        if error.code == "context_length_exceeded":
            session.overflow(str(error))
        return None
    if isinstance(error, ContextLengthError):  # the engine has the stricter limit
        session.overflow(str(error))
        return bad_request(str(error), param="messages", code="context_length_exceeded")
    if isinstance(error, EngineError):
        session.fail(str(error))
        return engine_failed(str(error))
    if isinstance(error, TimeoutError):
        if session.closed:
            session.counters["undelivered_turns"] += 1
            return session_closed()
        limit_s = session.turn_timeout_s
        what = "the next token of the model's reply"
        session.fail(too_slow(what, "rollout.turn_timeout_s", limit_s))
        return turn_timed_out(session.turn_timeout_s)
    if isinstance(error, Exception):  # a bug of our own must not become a reward of 0
        _log.exception("the gateway failed in session %s", session.id, exc_info=error)
        session.fail(f"gateway: {error!r}")
        return engine_failed(f"The gateway failed: {error!r}")
    return None
