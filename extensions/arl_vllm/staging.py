"""The staging of a policy version in a worker: loaded and checked while the model samples."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from agentgym_rl.core import WeightsError, check_shapes, weight_files
from agentgym_rl.core.model_folder import Shapes
from agentgym_rl.storage.weights_folder import held
from agentgym_rl.weights import check_finite

_log = logging.getLogger("vllm.agentgym_rl")  # shown by vLLM's own logging configuration
_READ_ONLY = 8
"""The flag cudaHostRegisterReadOnly."""
State = Literal["idle", "staging", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The tensors of an update."""

    tensors: dict[str, Tensor]
    same: Collection[str] = ()
    """The tensors that were left out, because they are those of `base`: whole blocks of them."""
    base: tuple[str, int] | None = None
    """The sequence and the number of the version that has to be in place; None: any."""
    brings: tuple[str, int] | None = None
    """The sequence and the number of the new version, if it has one."""
    own: Collection[str] | None = None
    """The tensors that this worker checks, if others of its server check the rest; None: all."""
    hold: ExitStack = field(default_factory=ExitStack)
    """The resources under the tensors, which `Staging.release` closes."""


class Staging:
    """A thread that runs `load` at once, then checks the tensors against `expected`.

    `load` returns tensors in CPU memory, which nothing changes until `release`, or raises
    WeightsError. `path` describes the source in messages.
    """

    def __init__(self, load: Callable[[], Loaded], *, path: str, expected: Shapes | None) -> None:
        self.path = path
        self.error = ""
        """The reason of a failure; empty without one."""
        self.seconds = 0.0
        """The time for loading and checking."""
        self._load = load
        self._expected = expected
        self._loaded: Loaded | None = None
        self._is_released = False
        # A daemon thread: a server that ends does not wait for weights that it will not serve.
        self._thread = threading.Thread(target=self._run, name="arl-staging", daemon=True)
        self._thread.start()

    @property
    def state(self) -> State:
        if self._thread.is_alive():
            return "staging"
        return "failed" if self._loaded is None else "ready"

    def result(self, *, timeout_s: float) -> Loaded:
        """Return the tensors.

        Raises:
            WeightsError: staging failed, or was not done within `timeout_s`.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise WeightsError(f"weights {self.path} were not staged within {timeout_s:g} s")
        if self._loaded is None:
            raise WeightsError(self.error)
        return self._loaded

    def release(self) -> None:
        """Release what is under the tensors, which are no longer used, now or when the thread
        ends. Idempotent."""
        self._is_released = True
        if self._loaded is not None:
            self._loaded.hold.close()

    def _run(self) -> None:
        start = time.monotonic()
        with ExitStack() as stack:
            self._stage(stack)
            if self._loaded is not None and not self._is_released:
                stack.pop_all()
        self.seconds = time.monotonic() - start

    def _stage(self, stack: ExitStack) -> None:
        try:
            loaded = self._load()
            stack.callback(loaded.hold.close)
            what = f"weights {self.path}"
            if self._expected is not None:
                same = loaded.same
                expected = {n: shape for n, shape in self._expected.items() if n not in same}
                check_shapes(shapes_of(loaded.tensors), expected, what=what)
            for name in loaded.tensors if loaded.own is None else loaded.own:
                check_finite(name, loaded.tensors[name], what=what)
            self._loaded = loaded
        except WeightsError as error:
            self.error = str(error)
        except Exception as error:  # a thread has no caller that would report it
            self.error = f"weights {self.path}: {type(error).__name__}: {error}"


def mapped(path: Path, names: Container[str], hold: ExitStack) -> dict[str, Tensor]:
    """Return tensors of a version in shared memory as they are there, until `hold` closes.

    They take no memory of this process. vLLM copies the part of each that a worker needs, so that
    all workers of all servers on a machine share one copy of what they have staged.

    Raises:
        WeightsError: the version is missing, or cannot be read.
    """
    hold.enter_context(held(path))
    found: dict[str, Tensor] = {}
    try:
        for part in weight_files(path):
            file = safe_open(part, framework="pt")
            found |= {name: file.get_tensor(name) for name in file.keys() if name in names}  # noqa: SIM118
    except Exception as error:  # OSError, SafetensorError, ConfigError
        raise WeightsError(f"cannot map {path}: {type(error).__name__}: {error}") from error
    return found


def lock_pages(tensors: Iterable[Tensor], hold: ExitStack, *, device: torch.device) -> None:
    """Lock the pages under tensors of mapped files until `hold` closes: the driver then copies from
    them to the GPU `device` without a buffer between (experimental: not measured). In a new thread,
    the current one is the first of the machine, which belongs to another worker.

    CUDA runtime API, cudaHostRegister:
    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
    """
    runtime: Any = torch.cuda.cudart()
    pages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    for start, size in pages.items():
        with torch.cuda.device(device):
            error = int(runtime.cudaHostRegister(start, size, _READ_ONLY))
        if error:
            _log.info("staged weights are not page-locked: cudaHostRegister gave error %d", error)
            return
        hold.callback(runtime.cudaHostUnregister, start)


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Return name and shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def read_shapes(model_dir: Path) -> Shapes | None:
    """Return names and shapes in a model folder's safetensors files; None if there are none.

    Raises:
        WeightsError: an existing file cannot be read.
    """
    try:
        return {
            name: tuple(file.get_slice(name).get_shape())
            for path in weight_files(model_dir)
            for file in [safe_open(path, framework="pt")]
            for name in file.keys()  # noqa: SIM118 - not a mapping
        } or None
    except Exception as error:  # OSError, SafetensorError, and JSON of any shape
        raise WeightsError(
            f"cannot read the parameter shapes of {model_dir}: {type(error).__name__}: {error}"
        ) from error
