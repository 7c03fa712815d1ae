"""The table of sessions by API key."""

from __future__ import annotations

import hashlib
import hmac

from agentgym_rl.gateway.errors import session_closed, unknown_key
from agentgym_rl.runtime.lru_dict import LruDict

from .session import Session

_REMEMBERED = 100_000
"""The number of closed sessions that still answer 410; older ones answer 401."""


class SessionTable:
    """The open sessions by key. Keys are compared as digests, safe from timing attacks."""

    def __init__(self) -> None:
        self._open: dict[bytes, Session] = {}
        self._closed: LruDict[bytes, None] = LruDict(_REMEMBERED)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, session: Session) -> None:
        """Accept the session's key."""
        self._open[_digest(session.key)] = session

    def remove(self, session: Session) -> None:
        """Reject the session's key from now on; idempotent."""
        digest = _digest(session.key)
        self._open.pop(digest, None)
        self._closed[digest] = None

    def authenticate(self, key: str) -> Session:
        """Return the open session to which `key` belongs.

        Raises:
            ApiError: 401 for an unknown key, 410 for the key of a closed session.
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
