"""The commands on a run's folder: `audit`, `ledger`, `replay`, `export`, `reverify`, `timeline`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from agentgym_rl.cli.parse import load_configuration
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
    if sum(getattr(args, kind) for kind in ("model", *_KINDS)) != 1:
        raise ConfigError(
            "arl export writes supervised data with --sft, or of the best episodes with "
            "--filtered, pairs for DPO with --pairs, labelled episodes for KTO with --kto, a "
            "checkpoint's model with --model: give one of them"
        )
    _check_oracle(args)
    _check_kind(args)
    if args.model:
        return _export_model(args)
    report = _export_oracle(args) if args.oracle else _export_recorded(args)
    if args.json:
        print_json(report)
        return 0
    from agentgym_rl.report.audit import export_lines

    print("\n".join(export_lines(report)))
    return 0


_KINDS = ("sft", "filtered", "pairs", "kto")


def _check_kind(args: Namespace) -> None:
    """Refuse arguments that only another kind of data has."""
    if args.format != "messages" and not (args.sft or args.model):
        raise ConfigError("--format tokens goes with --sft alone")
    if args.most is not None and not (args.pairs or args.filtered):
        raise ConfigError(
            "--most counts pairs or best episodes: it goes with --pairs or --filtered"
        )
    if args.margin is not None and not args.pairs:
        raise ConfigError("--margin is of pairs: it goes with --pairs")


def _check_oracle(args: Namespace) -> None:
    """Refuse arguments that do not go together."""
    of_oracle = ("config", "env", "data", "agent", "sandbox", "seed", "num", "slips")
    given = [f"--{name}" for name in of_oracle if getattr(args, name) is not None]
    given += [f"--{key}" for key in args.overrides]
    if not args.oracle:
        if given:
            raise ConfigError(f"{', '.join(given)}: only with --oracle, which plays episodes")
        if args.folder is None:
            raise ConfigError("arl export: which FOLDER? A run, a checkpoint, or `arl eval --out`")
        return
    if not args.sft or args.format != "messages":
        raise ConfigError("--oracle writes messages: it goes with --sft alone")
    if args.folder is not None:
        raise ConfigError(
            f"{args.folder} and --oracle: the oracle plays new episodes; give one of the two"
        )
    if args.num is None or args.num < 1:
        raise ConfigError(f"--oracle needs --num N, the number of tasks to play; got {args.num}")
    if args.slips is not None and not 0 <= args.slips <= 1:
        raise ConfigError(f"--slips {args.slips}: expected a share of the episodes, 0 to 1")


def _export_recorded(args: Namespace) -> dict[str, Any]:
    from agentgym_rl.export.sft import Wanted, export_sft

    given = {name: getattr(args, name) for name in ("most", "margin")}
    wanted = Wanted(
        form=args.format,
        min_reward=args.min_reward,
        split=args.split,
        kind=next(kind for kind in _KINDS if getattr(args, kind)),
        **{name: value for name, value in given.items() if value is not None},
    )
    return export_sft(args.folder, args.out, wanted, on_progress=counting("read", "episodes"))


def _export_oracle(args: Namespace) -> dict[str, Any]:
    """Play the solutions of the configured environment, and write them.

    Raises:
        ConfigError: no oracle, too few tasks, no episode to write, or a file that exists.
    """
    from agentgym_rl.export.sft import Wanted, export_solutions
    from agentgym_rl.rollout.oracle import paid_in_full, play_solutions

    config = load_configuration(args)
    log.setup(config.logging.level)
    if args.out.exists():  # before all is played
        raise ConfigError(f"--out {args.out}: the file exists")
    say = log.now_and_then()

    async def play() -> tuple[float | None, list[Any]]:
        least = args.min_reward
        if least is None and not args.slips:
            least = await paid_in_full(config.env, config.rollout)
        return least, await play_solutions(
            config.env,
            config.agent,
            config.rollout,
            sandbox=config.sandbox,
            verifier=config.verifier,
            split=args.split or "train",
            seed=config.seed,
            num=args.num,
            slips=args.slips or 0.0,
            on_progress=lambda done: say(f"played {done:,} of {args.num:,} tasks"),
        )

    least, episodes = run_interruptible(play)
    return export_solutions(episodes, args.out, Wanted(min_reward=least), env_id=config.env.id)


def _export_model(args: Namespace) -> int:
    if args.min_reward is not None or args.split or args.format != "messages":
        raise ConfigError("--min-reward, --split and --format choose episodes: not with --model")
    from agentgym_rl.trainer.export import export_trained  # torch, which only this needs

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
