"""What was decoded last, of all files together."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class Recent:
    """Tables (of pyarrow) by key: those used last, at most `max_bytes` of them but always one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()
        os.register_at_fork(after_in_child=self.clear)  # the lock may be held by another thread

    def clear(self) -> None:
        """Forget all."""
        self.size_bytes = 0
        self._tables: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._turn = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The table, which is now the last used; None: it is not there."""
        with self._turn:
            if key not in self._tables:
                return None
            self._tables.move_to_end(key)
            return self._tables[key][0]

    def add(self, key: Hashable, table: Any) -> None:
        """Keep `table`, and drop what was used longest ago while there is too much."""
        size = table.nbytes
        with self._turn:
            if key in self._tables:
                return
            self._tables[key] = table, size
            self.size_bytes += size
            while self.size_bytes > self._max_bytes and len(self._tables) > 1:
                self.size_bytes -= self._tables.popitem(last=False)[1][1]
