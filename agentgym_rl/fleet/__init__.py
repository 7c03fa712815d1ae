"""The engines of a run: started, restarted, and kept at one version."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fleet import Fleet as Fleet
    from .loads import EngineLoads as EngineLoads
    from .parts import GiveUp as GiveUp
    from .parts import MakeTurns as MakeTurns
    from .parts import Turns as Turns
    from .parts import turns_of as turns_of
    from .servers import Server as Server
    from .servers import check_joins as check_joins
    from .servers import check_seeds as check_seeds
    from .servers import wait_serving as wait_serving
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
