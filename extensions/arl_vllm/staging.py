"""The staging of a policy version in a worker: loaded and checked while the model samples."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors import safe_open
from torch import Tensor

from agentgym_rl.core import WeightsError, check_shapes, weight_files
from agentgym_rl.core.model_folder import Shapes
from agentgym_rl.weights import check_finite

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


class Staging:
    """A thread that runs `load` at once, then checks the tensors against `expected`.

    `load` returns tensors in CPU memory of their own, which nothing changes afterwards, or raises
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

    def _run(self) -> None:
        start = time.monotonic()
        try:
            loaded = self._load()
            what = f"weights {self.path}"
            if self._expected is not None:
                same = loaded.same
                expected = {n: shape for n, shape in self._expected.items() if n not in same}
                check_shapes(shapes_of(loaded.tensors), expected, what=what)
            for name, tensor in loaded.tensors.items():
                check_finite(name, tensor, what=what)
            self._loaded = loaded
        except WeightsError as error:
            self.error = str(error)
        except Exception as error:  # a thread has no caller that would report it
            self.error = f"weights {self.path}: {type(error).__name__}: {error}"
        self.seconds = time.monotonic() - start


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
