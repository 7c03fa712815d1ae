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
    from agentgym_rl.config import Config
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
    from .check import check, criteria_text

    if args.list:
        print(criteria_text())
        return 0
    if not args.env:
        raise ConfigError("arl check ENV: which environment? `arl list` shows those there are")
    report = check(load_configuration(args), args)
    if args.json:
        print_json(report.to_json())
    return 0 if report.passed else 1


def new(args: Namespace) -> int:
    from agentgym_rl.gym.scaffold import new_env

    folder = args.into or Path(args.name)
    files = [str(file) for file in new_env(args.name, folder)]
    if args.json:
        print_json({"files": files})
    else:
        print("\n".join(["wrote", *(f"  {file}" for file in files), ""]))
        print(f"next: pip install -e {folder} && arl check {args.name}")
    return 0


def doctor(args: Namespace) -> int:
    config = load_configuration(args)
    log.setup(config.logging.level)
    if args.what is None:
        return _examine(config, as_json=args.json)
    from agentgym_rl.gym.registry import make_sandbox
    from agentgym_rl.report.machine import probe_text

    report = run_interruptible(make_sandbox(config.sandbox.id, **config.sandbox.options).probe)
    if args.json:
        print_json({**asdict(report), "ok": report.ok})
    else:
        print(probe_text(report))
    return 0 if report.ok else 1


def _examine(config: Config, *, as_json: bool) -> int:
    """Probe the complete machine and print the result."""
    from agentgym_rl.cli.doctor import examine
    from agentgym_rl.config import VllmEngineConfig
    from agentgym_rl.report.machine import machine_text

    python = config.engine.python if isinstance(config.engine, VllmEngineConfig) else ""
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
