"""Stop strings: the engine ends a turn at one; the message ends before it."""

from __future__ import annotations


class StopCutter:
    """Cuts streamed text at the first stop string, which itself is not shown."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._hold = max(map(len, stops), default=1) - 1
        self._held = ""
        self.found: str | None = None
        """The stop string that the text was cut at."""

    def feed(self, text: str, *, last: bool) -> str:
        """What of the text so far is certain to come before any stop string."""
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            first, self.found = min(found)
            return self._held[:first]
        certain = len(self._held) - (0 if last else self._hold)
        shown, self._held = self._held[: max(certain, 0)], self._held[max(certain, 0) :]
        return shown
