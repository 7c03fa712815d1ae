"""The commands `arl list`, `arl check`, `arl new` and `arl doctor`, which need no run: they handle
environments, agents and sandboxes."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_rl.cli.parse import load_configuration
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.runtime import log
from agentgym_rl.runtime.signals import run_interruptible

from .showing import print_json

if TYPE_CHECKING:
    from agentgym_rl.gym.check.report import Result
    from agentgym_rl.gym.registry import Listed


def list_parts(args: Namespace) -> int:
    from agentgym_rl.gym.registry import listing

    rows = [*listing("env"), *listing("agent"), *listing("sandbox")]
    if args.json:
        print_json({"rows": [_row(row) for row in rows]})
        return 0
    width = max(len(row.id) for row in rows)
    for row in rows:
        broken = row.error.strip().splitlines()[-1:] or [""]
        text = row.spec.description if row.spec else f"BROKEN: {broken[0]}"
        begin = f"{row.kind:<8} {row.id:<{width}}  "
        wrap = textwrap.TextWrapper(80, begin, " " * len(begin), break_on_hyphens=False)
        print(wrap.fill(text))
    return 0


def check(args: Namespace) -> int:
    """Check the configured environment; print results as they come, unless `args.json`.

    Raises:
        ConfigError: no such environment or criterion, or a number that makes no sense.
    """
    from agentgym_rl.gym.check.report import summary_line, tally_line
    from agentgym_rl.gym.check.run import check_env
    from agentgym_rl.rollout.player import env_spec

    if args.list:
        _list_criteria(as_json=args.json)
        return 0
    if not args.env:
        raise ConfigError("arl check ENV: which environment? `arl list` shows those there are")
    config = load_configuration(args)
    if args.episodes < 1 or args.tasks < 0:
        raise ConfigError(
            f"--episodes {args.episodes}, --tasks {args.tasks}: expected 1, 0 or more"
        )
    log.setup(config.logging.level)
    say = log.now_and_then()
    report = run_interruptible(
        lambda: check_env(
            env_spec(config.env, config.rollout),
            episodes=args.episodes,
            tasks=args.tasks,
            only=[each for each in (args.only or "").split(",") if each],
            sandbox=config.sandbox,
            verifier=config.verifier,
            on_result=(lambda result: None) if args.json else _show,
            on_progress=lambda done, of: say(f"played {done:,} of {of:,} tasks"),
        )
    )
    if args.json:
        print_json(report.to_json())
    else:
        for tally in report.tallies:
            print(tally_line(tally))
        print(f"\n{summary_line(report)}")
    return 0 if report.passed else 1


def _list_criteria(*, as_json: bool) -> None:
    """Print the criteria, one or two lines each."""
    from agentgym_rl.gym.check.criteria import CRITERIA

    if as_json:
        print_json({"rows": [{"id": each.id, "text": each.text} for each in CRITERIA]})
        return
    width = max(len(each.id) for each in CRITERIA)
    for each in CRITERIA:
        row = f"{each.id:<{width}}  {each.text}"
        print(textwrap.fill(row, 80, subsequent_indent=" " * (width + 2)))


def _show(result: Result) -> None:
    from agentgym_rl.gym.check.report import result_lines

    print("\n".join(result_lines(result)), flush=True)


def new(args: Namespace) -> int:
    from agentgym_rl.gym.scaffold import new_env, new_task

    folder = args.into or Path(args.name)
    write = new_task if args.harbor else new_env
    files = [str(file) for file in write(args.name, folder)]
    if args.json:
        print_json({"files": files})
    else:
        print("\n".join(["wrote", *(f"  {file}" for file in files), ""]))
        install = f"pip install -e {folder} && arl check {args.name}"
        print(f"next: {f'arl check harbor:{folder}' if args.harbor else install}")
    return 0


def doctor(args: Namespace) -> int:
    from agentgym_rl.config import ServerEngineConfig

    config = load_configuration(args)
    log.setup(config.logging.level)
    if args.what is None:
        engine = config.engine
        python = engine.python if isinstance(engine, ServerEngineConfig) else ""
        return _examine(python, as_json=args.json)
    from agentgym_rl.cli.doctor import probe_text
    from agentgym_rl.gym.registry import make_sandbox

    report = run_interruptible(make_sandbox(config.sandbox.id, **config.sandbox.options).probe)
    if args.json:
        print_json({**asdict(report), "ok": report.ok})
    else:
        print(probe_text(report))
    return 0 if report.ok else 1


def _examine(python: str, *, as_json: bool) -> int:
    """Probe the complete machine, with the vLLM and SGLang of the interpreter `python`; print the
    result."""
    from agentgym_rl.cli.doctor import examine, machine_text

    probes = run_interruptible(lambda: examine(python))
    ok = all(probe.ok for probe in probes if probe.required)
    if as_json:
        print_json({"probes": [asdict(probe) for probe in probes], "ok": ok})
    else:
        print(machine_text(probes))
    return 0 if ok else 1


def _row(row: Listed) -> dict[str, str]:
    description = row.spec.description if row.spec else ""
    return {"kind": row.kind, "id": row.id, "description": description, "error": row.error}
