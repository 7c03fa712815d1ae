"""The command `arl replay`: batches of a run, trained again."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agentgym_rl.cli import Command, first_model_flag, json_flag, print_result, run_argument
from agentgym_rl.cli.output import counting
from agentgym_rl.runtime import log

_HELP = """\
Train a batch of a run again, and compare the result with the recorded one.

The command loads the newest checkpoint before this batch (or the initial model
of the run), trains the batches up to STEP again from the log, and compares loss
and weights of each with the run's records. A run with one rank must agree bit
for bit on the same machine. A run with several ranks agrees up to rounding, and
only its loss is compared, as for a batch that another version of this package
trained, which is then named. The run is only read.

  arl replay runs/NAME --step 12

Exit code: 0 if they agree, 1 if not.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    run_argument(parser)
    parser.add_argument(
        "--step", type=int, required=True, metavar="K", help="step in metrics.jsonl"
    )
    first_model_flag(parser)


def replay(args: Namespace) -> int:
    log.setup()
    from arl_audit.recorded import replay_text
    from arl_audit.replay_batch import replay

    report = replay(
        args.run, step=args.step, model=args.model, on_batch=counting("trained", "batches")
    )
    print_result(report, replay_text(report), as_json=args.json)
    return 0 if report["passed"] else 1


COMMAND = Command(
    summary="train a batch of a run again, and compare",
    description=_HELP,
    flags=_flags,
    run=replay,
    order=60,
)
