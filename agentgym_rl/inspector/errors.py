"""What a request can get instead of an answer."""

from __future__ import annotations

from agentgym_rl.errors import ArlError


class Refusal(ArlError):
    """An answer with an HTTP status: 400 asked wrongly, 401 without the token, 404 not there."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return self.message


def missing(what: str) -> Refusal:
    return Refusal(404, what)


def wrong(what: str) -> Refusal:
    return Refusal(400, what)
