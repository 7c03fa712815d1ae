"""Does an environment keep the contract? `await check_env("math")`, or `arl check math`.

    check_env ─► Subject: made as `make` makes it, with a Spy inside; played by scripted agents
              ─► Criteria (criteria/): each looks at what was played, or plays on its own
              ─► Report: passed, failed with what to do, or skipped with why

Each criterion has an id that stays. One that fails does not make others fail that only follow
from it: they say what to put right first.
"""

from .criteria import CRITERIA
from .report import Outcome, Report, Result, Tally
from .run import check_env

__all__ = ["CRITERIA", "Outcome", "Report", "Result", "Tally", "check_env"]
