"""Tasks one after the other, from where one has stopped: torchdata's `Stateful` protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.task import Task, TaskSource

from .rows import CONTENT


class TaskLoader(Iterator[Task]):
    """Iterates over `tasks` once; put a finite source in `Epochs` to go on for ever.

    `state_dict()` is one integer and, where the source can tell, a digest of which tasks come in
    which order (`content` of what it describes, as of rows, and of epochs and mixes of them);
    `load_state_dict` goes on with exactly the next task. torchdata takes it as it is, as in
    `torchdata.nodes.IterableWrapper(TaskLoader(...))`. A finite source also works by itself as
    the map-style data set of its `StatefulDataLoader`; give that one `collate_fn=list`.
    """

    def __init__(self, tasks: TaskSource) -> None:
        self._tasks = tasks
        self._index = 0

    def __next__(self) -> Task:
        try:
            task = self._tasks[self._index]
        except IndexError:
            raise StopIteration from None
        self._index += 1
        return task

    def state_dict(self) -> dict[str, Any]:
        """Where it is; JSON."""
        return {"index": self._index, CONTENT: self._content()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            ConfigError: it is no such state, or one of other tasks.
        """
        index = state_dict.get("index")
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise ConfigError(f"state of a TaskLoader: got {state_dict!r:.200}, expected an index")
        if state_dict.get(CONTENT) != self._content():
            raise ConfigError(
                f"this state is of other tasks: got content {state_dict.get(CONTENT)}, the "
                f"tasks here have {self._content()}; has a file changed, an option, the seed, the "
                "split, or the version of this package?"
            )
        self._index = index

    def _content(self) -> Any:
        return self._tasks.describe().get(CONTENT)
