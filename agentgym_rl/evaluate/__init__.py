"""Held-out evaluation. The package can be called, as it has the name of its public function."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .command import evaluate_all as evaluate_all
    from .command import serving_all as serving_all
    from .command import serving_model as serving_model
    from .during_training import Evaluator as Evaluator
    from .folder import EvalTarget as EvalTarget
    from .folder import compare as compare
    from .folder import compare_folders as compare_folders
    from .matches import Matches as Matches
    from .queue import EvalQueue as EvalQueue
    from .result import EvalResult as EvalResult
    from .result import Result as Result
    from .target import checked_checkpoint as checked_checkpoint
    from .target import config_of_run as config_of_run
    from .target import export_of as export_of
    from .target import run_of as run_of
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)


class _Package(ModuleType):
    """The package, which a program may have instead of the function: `agentgym_rl.evaluate()`.

    An import of any of its modules puts the package into the place of the lazy public name.
    """

    def __call__(self, *args: Any, **options: Any) -> Any:
        from .command import evaluate

        return evaluate(*args, **options)


sys.modules[__name__].__class__ = _Package
