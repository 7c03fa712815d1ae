"""The command `arl audit`: the recorded policy version of every trained token, verified."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agentgym_rl.cli import Command, first_model_flag, json_flag, print_result, run_argument
from agentgym_rl.cli.output import counting
from agentgym_rl.runtime import log

_HELP = """\
Verify that every trained token was sampled by its recorded policy version.

The command recomputes the log-prob of every trained token of a run, by the
trainer's forward of the token's version at its recorded temperature, and
compares it with the log-prob that the engine reported. The run must have been
made with --weights.keep_versions=all. The command does not disturb a running
run, and audits its batches so far.

float32: every token must agree within the limit (1e-4; engines agree to about
1e-5). bfloat16: the mean of every version must be within 1e-2, or within four
times what rounding does to the run's own tokens (measured: `rounding` in
--json); single tokens differ by more between correct kernels, so one wrong
segment can be missed.

If rollout.interrupt is keep, tokens sampled after an update of their own
request depend on the KV cache of older weights. The command counts and reports
them separately, without a verdict. A control recomputes some tokens under the
previous version: if that is within the limit too, the versions hardly differ,
and the audit proves little.

Tokens that fail are recomputed under neighbouring versions and at temperature
1, to find the cause. Exit code: 0 passed, 1 failed, 2 nothing to audit.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    run_argument(parser)
    parser.add_argument(
        "--threshold", type=float, metavar="X", help="limit on |Δ log-prob| (see above)"
    )
    parser.add_argument("--all", action="store_true", help="also waiting and dropped episodes")
    first_model_flag(parser)


def audit(args: Namespace) -> int:
    log.setup()
    from arl_audit.logprobs import audit
    from arl_audit.recorded import audit_text

    report = audit(
        args.run,
        threshold=args.threshold,
        untrained=args.all,
        model=args.model,
        on_progress=counting("audited"),
    )
    print_result(report, audit_text(report), as_json=args.json)
    return 0 if report["passed"] else 1


COMMAND = Command(
    summary="verify the recorded policy version of every trained token",
    description=_HELP,
    flags=_flags,
    run=audit,
    order=40,
)
