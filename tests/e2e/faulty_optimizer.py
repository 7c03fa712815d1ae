"""An optimizer with which one of two trainer ranks fails (tests/e2e puts this on the path)."""

import json
import os
import signal
import threading
from pathlib import Path

import torch
import torch.distributed as dist


class Faulty(torch.optim.SGD):
    """An optimizer that fails on rank 1, in the steps numbered `steps`, in the first `lives` lives
    of the ranks. The other rank waits for ever in the same step, as NCCL would."""

    def __init__(self, groups, lr, *, how: str, folder: str, step: int, lives: int):
        super().__init__(groups, lr=lr)
        self.how, self.failed, self.at, self.lives = how, Path(folder), step, lives
        self.count = 0

    def step(self, closure=None):
        rank, size = dist.get_rank(), dist.get_world_size()
        life = len(list(self.failed.glob("life-*"))) if size > 1 else self.lives
        if life < self.lives and self.count == self.at:
            if rank == 0:
                threading.Event().wait()
            (self.failed / f"life-{life}").write_text(json.dumps(os.getpid()))
            self._fail()
        self.count += 1
        return super().step(closure)

    def _fail(self):
        match self.how:
            case "memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            case "file":
                raise FileNotFoundError(2, "No such file or directory", "/gone/part-3")
            case "error":
                raise KeyError("plan")
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
