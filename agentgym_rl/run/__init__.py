"""A training run, assembled from all parts, and its loop."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loop import Loop as Loop
    from .parts import CALLBACKS as CALLBACKS
    from .parts import Forked as Forked
    from .parts import Opened as Opened
    from .parts import ProducerKind as ProducerKind
    from .parts import producer_kind as producer_kind
    from .result import Played as Played
    from .result import TrainResult as TrainResult
    from .resume import resumed_config as resumed_config
    from .training import LivePart as LivePart
    from .training import TrainingRun as TrainingRun
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
