"""The commands on a run's folder: `audit`, `ledger`, `replay`, `export`, `reverify`, `timeline`."""

from __future__ import annotations

from argparse import Namespace

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.runtime import log
from agentgym_rl.runtime.signals import run_interruptible

from .showing import counting, print_json


def audit(args: Namespace) -> int:
    log.setup()
    from agentgym_rl.audit.logprobs import audit
    from agentgym_rl.report.audit import audit_text

    report = audit(
        args.run, threshold=args.threshold, untrained=args.all, on_progress=counting("audited")
    )
    if args.json:
        print_json(report)
    else:
        print(audit_text(report))
    return 0 if report["passed"] else 1


def ledger(args: Namespace) -> int:
    log.setup()
    from agentgym_rl.audit.exactly_once import audit_ledger
    from agentgym_rl.report.audit import ledger_text
    from agentgym_rl.storage.run_folder import config_of

    config_of(args.run, f"arl ledger {args.run}")
    report = audit_ledger(args.run)
    if args.json:
        print_json(report)
    else:
        print(ledger_text(report))
    return 0 if report["passed"] else 1


def replay(args: Namespace) -> int:
    log.setup()
    from agentgym_rl.audit.replay_batch import replay
    from agentgym_rl.report.audit import replay_text

    report = replay(args.run, step=args.step, on_batch=counting("trained", "batches"))
    if args.json:
        print_json(report)
    else:
        print(replay_text(report))
    return 0 if report["passed"] else 1


def export(args: Namespace) -> int:
    log.setup()
    if args.sft == args.model:
        raise ConfigError(
            "arl export writes supervised data with --sft, a checkpoint's model with --model: "
            "give one of them"
        )
    if args.model:
        return _export_model(args)
    from agentgym_rl.export.sft import Wanted, export_sft
    from agentgym_rl.report.audit import export_lines

    wanted = Wanted(form=args.format, min_reward=args.min_reward, split=args.split)
    reading = counting("read", "episodes")
    report = export_sft(args.folder, args.out, wanted, on_progress=reading)
    if args.json:
        print_json(report)
        return 0
    print("\n".join(export_lines(report)))
    return 0


def _export_model(args: Namespace) -> int:
    if args.min_reward is not None or args.split or args.format != "messages":
        raise ConfigError("--min-reward, --split and --format choose episodes: they go with --sft")
    from agentgym_rl.export.model import export_trained

    report = export_trained(args.folder, args.out)
    if args.json:
        print_json(report)
        return 0
    why = f" ({report['metric']} {report['value']:.3f})" if report["metric"] else ""
    print(f"{report['checkpoint']}{why} is in {report['out']}")
    return 0


def reverify(args: Namespace) -> int:
    log.setup()
    from agentgym_rl.audit.reverify import reverify
    from agentgym_rl.report.audit import reverify_text

    reading = counting("played again", "episodes")
    report = run_interruptible(
        lambda: reverify(args.run, args.overrides, write=args.write, on_progress=reading)
    )
    if args.json:
        print_json(report)
    else:
        print(reverify_text(report))
    return 1 if report["changed"] else 0


def timeline(args: Namespace) -> int:
    log.setup()
    from agentgym_rl.inspector.timeline import write_timeline

    out = args.out or args.run / "timeline.json"
    report = write_timeline(args.run, out, on_progress=counting("read", "episodes"))
    if args.json:
        print_json(report)
    else:
        print(
            f"{report['steps']:,} steps and {report['episodes']:,} episodes: {report['out']}\n"
            "open it in https://ui.perfetto.dev (it stays in your browser) or chrome://tracing"
        )
    return 0
