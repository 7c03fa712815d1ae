"""Environments around environments, as in Gymnasium: limits, checks, records, rewards.

    make("math-v0")  =  OrderEnforcing( TurnLimit( …yours… ( Timeout( PassiveChecker( MathEnv )))))

`make` puts the four around everything; `wrappers=` of `make` (`[[env.wrappers]]` in a
configuration) goes between, around Attempts where `max_attempts` is above 1, and inside a
PassiveChecker more. Each is a file here.
"""

from .attempts import Attempts
from .common import OrderEnforcing, PassiveChecker, Record, TransformReward, TurnLimit
from .timeout import StepTimeout, Timeout, within
from .wrapper import Wrapper

__all__ = [
    "Attempts",
    "OrderEnforcing",
    "PassiveChecker",
    "Record",
    "StepTimeout",
    "Timeout",
    "TransformReward",
    "TurnLimit",
    "Wrapper",
    "within",
]
