"""Several turns that a client sends back as one assistant message, followed by the results of all
calls. They are split again if the result is exactly the recorded conversation.

    recorded   user, call 1, result 1, call 2, result 2, answer
    joined     user, text with call 1, call 2 and the answer, result 1, result 2

The ids of the calls name their turns. A message is split only if each turn's text and calls are in
it, in order and with nothing between or behind them, and if each turn follows the one before it
with exactly these results. Everything else stays as the client sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym_rl.gateway.messages import call_request, message_key, text_of, without_thoughts

from .client_defaults import Answered, same_calls

Message = Mapping[str, Any]
Messages = Sequence[Message]


class Joined:
    """A joined message, from which one turn after the other is taken."""

    def __init__(self, message: Message, results: Messages, tools: Messages | None) -> None:
        self._text = without_thoughts(text_of(message.get("content"))).strip()
        self._calls = list(message["tool_calls"])
        self._results = list(results)
        self._tools = tools
        self.parts: list[Message] = []

    @property
    def is_empty(self) -> bool:
        """Return whether all text and calls have been taken."""
        return not self._text and not self._calls

    @property
    def request(self) -> int | None:
        """Return the number of the request that the next call's id contains."""
        return call_request(self._calls[0].get("id")) if self._calls else None

    def goes_on_with(self, turn: Answered) -> bool:
        """Return whether the rest is `turn`, or begins with it."""
        if self._calls:
            return self.request == turn.request
        return turn.key[1:] == (self._text, ())

    def take(self, turn: Answered) -> tuple[Message, ...] | None:
        """Take a turn off the front; return the results of its calls, or None if it does not fit.

        The results of the last turn are taken whether or not all are there."""
        text, own = turn.key[1], turn.message.get("tool_calls") or ()
        ids = [call["id"] for call in own]
        if [call.get("id") for call in self._calls[: len(own)]] != ids:
            return None
        if not self._text.startswith(text):
            return None
        part = {"role": "assistant", "content": turn.message.get("content")}
        part |= {"tool_calls": self._calls[: len(own)]} if own else {}
        if not same_calls(turn.message, part, self._tools):
            return None
        self._text = self._text[len(text) :].lstrip()
        self._calls = self._calls[len(own) :]
        mine = [one for one in self._results if self.is_empty or one.get("tool_call_id") in ids]
        if not self.is_empty and (not own or len(mine) != len(own)):
            return None
        self._results = [one for one in self._results if one not in mine]
        self.parts += [part, *mine]
        return tuple(mine)


def taken_apart(
    messages: Messages,
    start: int,
    tools: Messages | None,
    *,
    of_request: Callable[[int], Any],
    following: Callable[[Any, tuple[Any, ...]], Sequence[Any]],
) -> Messages:
    """Return the messages with joined turns split, from `start` on; the same object if none are
    joined.

    `of_request` returns the turn that answered a request, `following` the turns that answered
    messages of the given keys after a turn.
    """
    found = list(messages[:start])
    index = start
    while index < len(messages):
        message, end = messages[index], index + 1
        if message["role"] == "assistant" and message.get("tool_calls"):
            while end < len(messages) and messages[end]["role"] == "tool":
                end += 1
            joined = Joined(message, messages[index + 1 : end], tools)
            if _apart(joined, of_request, following):
                found += joined.parts
                index = end
                continue
        found.append(message)
        index += 1
    return messages if len(found) == len(messages) else found


def _apart(
    joined: Joined,
    of_request: Callable[[int], Any],
    following: Callable[[Any, tuple[Any, ...]], Sequence[Any]],
) -> bool:
    """Split a message; return whether it consists of several turns."""
    request, count = joined.request, 0
    turn = None if request is None else of_request(request)
    while turn is not None:
        results = joined.take(turn)
        if results is None:
            return False
        count += 1
        if joined.is_empty:
            return count > 1
        keys = tuple(message_key(result) for result in results)
        turn = next(filter(joined.goes_on_with, reversed(following(turn, keys))), None)
    return False
