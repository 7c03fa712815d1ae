"""What the decode thread is told to do between two steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Command:
    """An action, and the future of who asked for it."""

    def __init__(self, action: Callable[[], T], future: Future[T]) -> None:
        self._action = action
        self.future = future

    def run(self) -> None:
        """A command that raises fails its caller, not the loop."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._action()
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
