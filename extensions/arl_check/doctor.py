"""The command `arl doctor`: probes of this machine, and of a sandbox."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from agentgym_rl.cli import (
    Command,
    config_flag,
    json_flag,
    load_configuration,
    print_result,
    sandbox_flag,
)
from agentgym_rl.runtime import log

_HELP = """\
Test the parts of this machine, and report a remedy for each that fails.

`arl doctor` looks at Python, torch, models, shared memory, disk, open files,
GPUs, vLLM, Ray, Slurm and every sandbox backend; only the needs of `arl train
--env math` affect the exit code. `--engine.type=vllm --engine.python=FILE`
looks for vLLM and SGLang in another interpreter.

`arl doctor sandbox` tests each feature of kernel, daemon or account that the
chosen sandbox backend needs, and reports the rights of its programs. The local
backend never runs a program with less isolation than it promises: if a required
probe fails, it refuses to start, with the same message. If namespaces are
missing, --sandbox.options.isolation=landlock tests the alternative.

Exit code: 0 it works, 1 it does not.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    config_flag(parser)
    parser.add_argument(
        "what", nargs="?", choices=["sandbox"], help="one part in detail (default: all, briefly)"
    )
    sandbox_flag(parser)


def doctor(args: Namespace) -> int:
    from agentgym_rl.config import ENGINES, ServerEngineConfig
    from agentgym_rl.runtime import run_interruptible

    engine_type = next(iter(ENGINES.members))  # the usual one may be of no installed package
    config = load_configuration(args, defaults={"engine.type": engine_type})
    log.setup(config.logging.level)
    if args.what is None:
        engine = config.engine
        python = engine.python if isinstance(engine, ServerEngineConfig) else ""
        return _examine(python, as_json=args.json)
    from agentgym_rl.gym import make_sandbox
    from arl_check.machine import probe_text

    report = run_interruptible(make_sandbox(config.sandbox.id, **config.sandbox.options).probe)
    print_result({**asdict(report), "ok": report.ok}, probe_text(report), as_json=args.json)
    return 0 if report.ok else 1


def _examine(python: str, *, as_json: bool) -> int:
    """Probe the complete machine, with the servers that the interpreter `python` has; print the
    result."""
    from agentgym_rl.runtime import run_interruptible
    from arl_check.machine import examine, machine_text

    probes = run_interruptible(lambda: examine(python))
    ok = all(probe.ok for probe in probes if probe.required)
    print_result(
        {"probes": [asdict(probe) for probe in probes], "ok": ok},
        machine_text(probes),
        as_json=as_json,
    )
    return 0 if ok else 1


COMMAND = Command(
    summary="test the parts of this machine, and suggest fixes",
    description=_HELP,
    flags=_flags,
    run=doctor,
    group="serve and scale",
    order=160,
)
