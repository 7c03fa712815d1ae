"""`arl plan`."""

from __future__ import annotations

from argparse import Namespace

from agentgym_rl import log
from agentgym_rl.arguments import load_configuration
from agentgym_rl.errors import ConfigError

from .showing import print_json


def plan(args: Namespace) -> int:
    for name in ("gpus", "cores", "parameters"):
        value = getattr(args, name)
        if (value is not None and value < 0) or (value == 0 and name != "parameters"):
            raise ConfigError(f"--{name} {value:g}: expected a number above 0")
    if args.run is not None and args.config is None:
        from agentgym_rl.run_dir import config_of

        args.config = config_of(args.run, f"--run {args.run}")
    config = load_configuration(args)
    log.setup("warning")  # the run's own messages, of another time
    from agentgym_rl.plan.command import Asked, plan

    planned = plan(
        config,
        Asked(
            run=args.run,
            rates=args.rates,
            gpu=args.gpu,
            parameters=args.parameters,
            gpus=args.gpus,
            cores=args.cores,
            searches=not args.no_search,
            plot=args.plot,
            write_rates=args.write_rates,
        ),
        say=log.now_and_then(),
    )
    if args.json:
        print_json(planned.json())
    else:
        print(planned.text())
    return 0
