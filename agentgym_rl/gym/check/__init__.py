"""The check of an environment against the contract: `await check_env("math")`, `arl check math`.

    check_env ─► Subject: the environment from `make`, with a Spy inside; played by scripted agents
              ─► Criteria (criteria/): each judges those episodes, or plays episodes of its own
              ─► Report: passed, failed with the fix, or skipped with the reason

Each criterion has a stable id. Criteria that depend on a failed one are skipped, not failed: their
results name the criterion to fix first.
"""

from .criteria import CRITERIA
from .report import Outcome, Report, Result, Tally
from .run import check_env

__all__ = ["CRITERIA", "Outcome", "Report", "Result", "Tally", "check_env"]
