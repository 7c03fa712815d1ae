"""Wrappers around environments, as in Gymnasium: limits, checks, records, rewards.

    make("math-v0")  =  OrderEnforcing( TurnLimit( …yours… ( Timeout( PassiveChecker( MathEnv )))))

`make` puts these four around every environment. `wrappers=` of `make` (`[[env.wrappers]]` in a
configuration) go between them, around Attempts if `max_attempts` is above 1, and inside one more
PassiveChecker.
"""

from .attempts import Attempts
from .timeout import Held, StepTimeout, Timeout, within
from .wrapper import (
    OrderEnforcing,
    PassiveChecker,
    Record,
    TransformReward,
    TurnLimit,
    Wrapper,
)

__all__ = [
    "Attempts",
    "Held",
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
