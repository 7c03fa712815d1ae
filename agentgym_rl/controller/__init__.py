"""The buffer between rollout and trainer, and the batches it gives to the ranks."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import RanksApi as RanksApi
    from .batches import batch_metrics as batch_metrics
    from .batches import shards_of as shards_of
    from .batches import split_batch as split_batch
    from .buffer import Buffer as Buffer
    from .controller import LOOK_EVERY_S as LOOK_EVERY_S
    from .controller import Controller as Controller
    from .publication import Engines as Engines
    from .publication import publish as publish
    from .ranks import MOVED as MOVED
    from .ranks import STILL as STILL
    from .ranks import TOO_LARGE as TOO_LARGE
    from .ranks import HttpRanks as HttpRanks
    from .ranks import Metrics as Metrics
    from .ranks import Ranks as Ranks
    from .ranks import RanksFailed as RanksFailed
    from .ranks import answer as answer
    from .ranks import refusal as refusal
    from .schedule import Plan as Plan
    from .teaching import TeachingWatch as TeachingWatch
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
