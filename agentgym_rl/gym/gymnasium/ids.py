"""Our ids in Gymnasium's registry: `gymnasium.make("agentgym_rl:arl/math-v0")`.

Gymnasium imports the part before the colon and looks the rest up. So the ids must be there once
both packages are imported, whichever comes first; and importing this one must not import that.
Environments themselves are imported when they are made. Standard library only, little of it.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow imports, for `import agentgym_rl`
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

_GYMNASIUM = "gymnasium"
_NAMESPACE = "arl"
_ENTRY_POINT = "agentgym_rl.gym.gymnasium.env:SyncGym"

_ids: set[str] = set()


def publish(id: str) -> None:
    """Have Gymnasium know the environment `id`, now or as soon as it is imported.

    An id that is somebody else's there stays theirs: that is a warning.
    """
    _ids.add(id)
    if (gymnasium := _imported()) is not None:
        _register(gymnasium, id)


def publish_plugins() -> None:
    """Have Gymnasium know the environments of all installed plugins, as `publish` does."""
    if (gymnasium := _imported()) is not None:
        _register_all(gymnasium)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def gymnasium_id(id: str) -> str:
    """What Gymnasium calls the environment `id`: those without a namespace are in `arl/`."""
    return id if "/" in id else f"{_NAMESPACE}/{id}"


def _imported() -> ModuleType | None:
    """Gymnasium, if its import is over."""
    module = sys.modules.get(_GYMNASIUM)
    return module if hasattr(module, "register") and hasattr(module, "make") else None


def _register_all(gymnasium: ModuleType) -> None:
    from importlib.metadata import entry_points

    plugins = {point.name for point in entry_points(group="agentgym_rl.envs")}
    for id in sorted(plugins | _ids):
        _register(gymnasium, id)


def _register(gymnasium: Any, id: str) -> None:
    theirs = gymnasium_id(id)
    found = gymnasium.registry.get(theirs)
    if found is not None and found.entry_point != _ENTRY_POINT:
        _warn(id, f"{theirs} is somebody else's, {found.entry_point}")
        return
    gymnasium.registry.pop(theirs, None)  # `register(..., force=True)` means the new one
    try:
        gymnasium.register(theirs, entry_point=_ENTRY_POINT, kwargs={"env": id})
    except gymnasium.error.Error as error:  # an id that Gymnasium has no form for
        _warn(id, error)


def _warn(id: str, why: object) -> None:
    import logging

    log = logging.getLogger(__name__)
    log.warning("gymnasium.make will not know the environment %s: %s", id, why)


class _Watch:
    """A finder on `sys.meta_path`: waits for `import gymnasium`, registers, and is gone."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _GYMNASIUM or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(self, spec.loader)  # pyright: ignore[reportAttributeAccessIssue]
        return spec


class _Registering:
    """The loader it was found with; registers once the module has run."""

    def __init__(self, watch: _Watch, loader: Loader) -> None:
        self._watch = watch
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not set yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._watch in sys.meta_path:
            sys.meta_path.remove(self._watch)
        _register_all(module)
