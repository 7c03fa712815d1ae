"""Which keys open which sessions."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict

from agentgym_rl.gateway.errors import session_closed, unknown_key

from .session import Session

_REMEMBERED = 100_000
"""Closed sessions that still answer 410; older ones answer 401."""


class SessionTable:
    """Open sessions by key. Keys are kept and compared as digests: timing tells nothing."""

    def __init__(self) -> None:
        self._open: dict[bytes, Session] = {}
        self._closed: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, session: Session) -> None:
        """Let the session's key in."""
        self._open[_digest(session.key)] = session

    def remove(self, session: Session) -> None:
        """Shut the session's key out; idempotent."""
        digest = _digest(session.key)
        self._open.pop(digest, None)
        self._closed[digest] = None
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)

    def authenticate(self, key: str) -> Session:
        """The open session `key` belongs to.

        Raises:
            ApiError: 401 for a key never given out, 410 for one of a closed session.
        """
        digest = _digest(key)
        session = self._open.get(digest)
        if session is not None and hmac.compare_digest(session.key.encode(), _bytes(key)):
            if session.closed:
                raise session_closed()
            return session
        raise session_closed() if digest in self._closed else unknown_key()


def _digest(key: str) -> bytes:
    return hashlib.blake2b(_bytes(key), digest_size=16).digest()


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
