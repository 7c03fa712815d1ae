"""The command `arl ledger`: exactly-once training, verified."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agentgym_rl.cli import Command, json_flag, print_result, run_argument
from agentgym_rl.runtime import log

_HELP = """\
Verify that every group of episodes was trained exactly once, and none skipped.

The command reads the log, the metrics and the checkpoints' manifests of a run
(in the manifests the trainer records the groups that its weights have seen). It
does not disturb the run. However often the run was killed and resumed, the
surviving weights must have been trained once on each batch, on complete groups
and on no group twice; each group of a batch must be trained; and a finished run
must have no group left.

  arl ledger runs/NAME

Exit code: 0 no fault, 1 faults, each of them named.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    run_argument(parser)


def ledger(args: Namespace) -> int:
    log.setup()
    from agentgym_rl.storage import config_of
    from arl_audit.exactly_once import audit_ledger
    from arl_audit.recorded import ledger_text

    config_of(args.run, f"arl ledger {args.run}")
    report = audit_ledger(args.run)
    print_result(report, ledger_text(report), as_json=args.json)
    return 0 if report["passed"] else 1


COMMAND = Command(
    summary="verify that every group was trained exactly once",
    description=_HELP,
    flags=_flags,
    run=ledger,
    group="look at runs",
    order=50,
)
