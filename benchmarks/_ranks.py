"""Trainer ranks as forks of this process, which has made the imports."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Found = dict[str, Any]


class RankDied(RuntimeError):
    """A rank that ended with an error, which is on stderr."""


def forked(folder: Path, size: int, compute: Callable[[Found], Found]) -> list[Found]:
    """Return what `compute` returns for each of `size` forked ranks; it gets a rank's arguments of
    `join_world`. Files of the ranks are in `folder`.

    Raises:
        RankDied: one of them failed; the others are then killed, as they would wait for it.
    """
    children, meeting = list[int](), folder / f"meet-{os.urandom(4).hex()}"
    for rank in range(size):
        if child := os.fork():
            children.append(child)
            continue
        try:
            place = {"rank": rank, "size": size, "rendezvous": f"file://{meeting}"}
            (folder / f"found-{rank}.json").write_text(json.dumps(compute(place)))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    died = False
    while children:
        child, code = os.wait()
        children.remove(child)
        if code and not died:
            died = True
            for other in children:
                os.kill(other, signal.SIGKILL)
    if died:
        raise RankDied(f"a rank of {size} failed")
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(size)]
