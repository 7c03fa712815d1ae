"""Held-out evaluation. The package can be called, as it has the name of its public function."""

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """The package, which a program may have instead of the function: `agentgym_rl.evaluate()`.

    An import of any of its modules puts the package into the place of the lazy public name.
    """

    def __call__(self, *args: Any, **options: Any) -> Any:
        from .command import evaluate

        return evaluate(*args, **options)


sys.modules[__name__].__class__ = _Package
