"""The extension of checks: `arl check` and `arl new` for authors of environments, `arl doctor`,
and `arl bench` for the benchmarks of the source checkout.

    check_env ─► Subject: the environment from `make`, with a Spy inside; played by scripted agents
              ─► Criteria (criteria/): each judges those episodes, or plays episodes of its own
              ─► Report: passed, failed with the fix, or skipped with the reason

Each criterion has a stable id. Criteria that depend on a failed one are skipped, not failed: their
results name the criterion to fix first. `scaffold/` has the files that `arl new` writes,
and `machine.py` the probes of `arl doctor`.
"""

BUILDS_ON = ("arl_trial",)
