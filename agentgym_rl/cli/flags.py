"""The flags of each command, and their texts in --help."""

from __future__ import annotations

import argparse
import difflib
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from agentgym_rl import __version__
from agentgym_rl.cli import help_texts
from agentgym_rl.core.errors import ConfigError

from .config_keys import key_help, key_table

_ONCE = frozenset({"data", "out", "preset", "resume", "run"})
"""Flags of files and recipes: a second one reads like a further one, and none of theirs may be
dropped in silence. A later value of another flag takes the place of an earlier one, as a later
`--section.key=value` does, so that a script's flags can be overridden behind them."""


class _Once(argparse.Action):
    """A flag that takes one value."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        given = namespace.__dict__.setdefault("_given", {})
        if self.dest in _ONCE and option_string and given.get(self.dest, values) != values:
            parser.error(
                f"{option_string} is given twice, as {given[self.dest]} and as {values}: leave "
                "one of them out"
            )
        given[self.dest] = values
        setattr(namespace, self.dest, values)


class _Parser(ArgumentParser):
    """A parser that raises ConfigErrors for mistakes, like the rest of the package."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `{self.prog} --help` shows the flags")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a value that is not one of the choices; the message has the nearest choice."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(choices)}"
        what = "command" if action.dest == "command" else "/".join(action.option_strings)
        self.error(f"unknown {what or action.dest} {value!r}; {hint}")


class _Help(argparse.Action):
    """The flag --help: the text of its command; or with a value that of a section or a key."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        print(key_help(values) if isinstance(values, str) else parser.format_help().rstrip())
        parser.exit()


def commands_with(flag: str) -> list[str]:
    """Return the commands that have `flag`, which includes its dashes."""
    found = []
    for name, (add_flags, _) in _COMMANDS.items():
        parser = ArgumentParser(add_help=False)
        add_flags(parser)
        if flag in parser._option_string_actions:
            found.append(name)
    return found


def make_parser(asked: Sequence[str]) -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    """Return the parser and its commands; only commands in `asked` get their flags, because the
    table of keys loads the configuration, which takes 0.3 s."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        "arl", description=help_texts.DESCRIPTION, formatter_class=raw, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"arl {__version__}")
    group = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands: dict[str, ArgumentParser] = {}
    for name, (add_flags, help) in _COMMANDS.items():
        its = commands[name] = group.add_parser(
            name,
            help=help,
            description=help,
            formatter_class=raw,
            allow_abbrev=False,
            add_help=False,
        )
        shown = its.add_argument("-h", "--help", action=_Help, nargs=0, help="show this and end")
        if name in asked:
            add_flags(its)
            if its.epilog:
                shown.nargs, shown.metavar = "?", "SECTION"
                shown.help = "show this; or what a section's keys do, as with --help algo.kl"
    return parser, commands


def _train(parser: ArgumentParser) -> None:
    parser.description = help_texts.TRAIN
    _json(parser)
    _config(parser)
    _who_plays(parser)
    _training(parser)


def _serve(parser: ArgumentParser) -> None:
    parser.description = help_texts.SERVE
    _json(parser)
    _config(parser)
    parser.add_argument("--engine", metavar="TYPE", help="embedded, vllm or sglang")
    _training(parser)


def _eval(parser: ArgumentParser) -> None:
    parser.description = help_texts.EVAL
    _json(parser)
    _config(parser, action="append")
    _who_plays(parser, "embedded, vllm, sglang, openai (a URL), litellm")
    parser.add_argument("--run", metavar="DIR", help="evaluate this run's exported model")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="evaluate RUN/checkpoints/step-N instead"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep every episode there; resumes, too"
    )
    parser.add_argument(
        "--compare", type=Path, nargs="+", metavar="DIR", help="only the table, of folders of --out"
    )
    parser.add_argument(
        "--round-robin", action="store_true", help="let the models play each other, and rate them"
    )


def _engine(parser: ArgumentParser) -> None:
    parser.description = help_texts.ENGINE
    _config(parser)
    parser.add_argument("--backend", metavar="TYPE", help="embedded (default), vllm or sglang")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="index of this server")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000")
    parser.add_argument("--weight-version", default="0.0", metavar="LABEL", help="label (0.0)")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="log every request, as JSONL")
    parser.add_argument(
        "--reward-model", metavar="MODEL", help="serve this sequence classifier instead"
    )


def _rollout(parser: ArgumentParser) -> None:
    _config(parser)
    parser.add_argument("--controller", required=True, metavar="URL", help="source of groups")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="index of this worker")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="working folder")


def _trainer(parser: ArgumentParser) -> None:
    _config(parser)
    parser.add_argument("--run", required=True, metavar="DIR", help="the run's folder")
    parser.add_argument(
        "--weights", type=Path, required=True, metavar="DIR", help="folder of versions"
    )
    parser.add_argument("--controller", required=True, metavar="URL", help="source of batches")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--rendezvous", required=True, metavar="tcp://HOST:PORT", help="of ranks")
    parser.add_argument("--incarnation", type=int, default=0, metavar="N", help="times resumed")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="checkpoint to resume from")
    parser.add_argument(
        "--served", type=int, metavar="N", help="version on the engines, from earlier ranks"
    )


def _warm_up(parser: ArgumentParser) -> None:
    _config(parser)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--rendezvous", required=True, metavar="tcp://HOST:PORT", help="of ranks")


def _audit(parser: ArgumentParser) -> None:
    parser.description = help_texts.AUDIT
    _json(parser)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, like runs/NAME")
    parser.add_argument(
        "--threshold", type=float, metavar="X", help="limit on |Δ log-prob| (see above)"
    )
    parser.add_argument("--all", action="store_true", help="also waiting and dropped episodes")


def _ledger(parser: ArgumentParser) -> None:
    parser.description = help_texts.LEDGER
    _json(parser)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, like runs/NAME")


def _runs(parser: ArgumentParser) -> None:
    parser.description = help_texts.RUNS
    _json(parser)
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="runs, or folders of runs (default: runs)"
    )
    parser.add_argument("--compare", action="store_true", help="compare the given runs")
    parser.add_argument("--delete", action="store_true", help="remove their folders; asks first")
    parser.add_argument("--yes", action="store_true", help="with --delete: do not ask")


def _inspect(parser: ArgumentParser) -> None:
    parser.description = help_texts.INSPECT
    _json(parser)
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="runs, or folders of runs (default: runs)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free one")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one file, then end")
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="with --html: episodes per run (200)"
    )


def _engines(parser: ArgumentParser) -> None:
    parser.description = help_texts.ENGINES
    _json(parser)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, like runs/NAME")
    parser.add_argument(
        "--add", nargs="?", const="1", metavar="N|URL", help="add N engines (1), or the one at URL"
    )
    parser.add_argument("--remove", metavar="ENGINE", help="remove one, by name or URL")


def _workers(parser: ArgumentParser) -> None:
    parser.description = help_texts.WORKERS
    _json(parser)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, like runs/NAME")
    parser.add_argument("--add", nargs="?", const=1, type=int, metavar="N", help="add N more (1)")
    parser.add_argument("--remove", metavar="WORKER", help="remove one, by name")


def _replay(parser: ArgumentParser) -> None:
    parser.description = help_texts.REPLAY
    _json(parser)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, like runs/NAME")
    parser.add_argument(
        "--step", type=int, required=True, metavar="K", help="step in metrics.jsonl"
    )


def _reverify(parser: ArgumentParser) -> None:
    parser.description = help_texts.REVERIFY
    _json(parser)
    parser.epilog = key_table()
    parser.set_defaults(config=None)  # uses the run's configuration; keys override it
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, like runs/NAME")
    parser.add_argument("--write", type=Path, metavar="FILE", help="old and new rewards, as JSONL")


def _export(parser: ArgumentParser) -> None:
    parser.description = help_texts.EXPORT
    _json(parser)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="a run, a checkpoint, or `arl eval --out`",
    )
    parser.add_argument("--sft", action="store_true", help="supervised data")
    parser.add_argument("--filtered", action="store_true", help="the best episodes of each group")
    parser.add_argument("--pairs", action="store_true", help="pairs of a group, for DPO")
    parser.add_argument("--kto", action="store_true", help="episodes with a label, for KTO")
    parser.add_argument(
        "--model", action="store_true", help="checkpoint in Hugging Face's format; RUN: the best"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="NEW", help="a JSONL file; --model: a folder"
    )
    parser.add_argument("--min-reward", type=float, metavar="X", help="minimum reward")
    parser.add_argument("--split", choices=["train", "eval"], help="only tasks of this split")
    parser.add_argument(
        "--format", choices=["messages", "tokens"], default="messages", help="default: messages"
    )
    parser.add_argument(
        "--most", type=int, metavar="N", help="pairs, or best episodes, of each group (1)"
    )
    parser.add_argument("--margin", type=float, metavar="X", help="--pairs: least difference")
    _oracle(parser)


def _oracle(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--oracle", action="store_true", help="play an environment's own solutions (see above)"
    )
    parser.add_argument("--num", type=int, metavar="N", help="--oracle: the number of tasks")
    parser.add_argument("--seed", type=int, metavar="N", help="--oracle: the seed of the tasks")
    parser.add_argument(
        "--slips", type=float, metavar="SHARE", help="--oracle: the episodes with a wrong digit"
    )
    parser.add_argument("--env", metavar="ID", help="--oracle: an id or module:Class")
    parser.add_argument("--agent", metavar="ID", help="--oracle: an id or module:Class")
    _keys(parser)
    _data(parser)
    _sandbox(parser)


def _timeline(parser: ArgumentParser) -> None:
    parser.description = help_texts.TIMELINE
    _json(parser)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, like runs/NAME")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="a new file; default: RUN/timeline.json"
    )


def _plan(parser: ArgumentParser) -> None:
    parser.description = help_texts.PLAN
    _json(parser)
    _config(parser)
    parser.add_argument("--engine", metavar="TYPE", help="embedded, vllm or sglang")
    parser.add_argument("--steps", type=int, metavar="N", help="training batches")
    parser.add_argument("--run", type=Path, metavar="RUN", help="calibrate on this finished run")
    parser.add_argument("--rates", type=Path, metavar="FILE", help="speed of each part, as TOML")
    parser.add_argument("--gpu", default="", metavar="NAME", help="estimate rates: H100, A100, ...")
    parser.add_argument(
        "--parameters", type=float, default=0.0, metavar="N", help="model size, with --gpu"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="total number (see above)")
    parser.add_argument("--cores", type=float, metavar="N", help="shared by all (see above)")
    parser.add_argument("--no-search", action="store_true", help="only the run as configured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot, PNG")
    parser.add_argument(
        "--write-rates", type=Path, metavar="FILE", help="write the used rates to a new file"
    )


def _doctor(parser: ArgumentParser) -> None:
    parser.description = help_texts.DOCTOR
    _json(parser)
    _keys(parser)
    parser.add_argument(
        "what", nargs="?", choices=["sandbox"], help="one part in detail (default: all, briefly)"
    )
    _sandbox(parser)


def _check(parser: ArgumentParser) -> None:
    parser.description = help_texts.CHECK
    _json(parser)
    _keys(parser)
    parser.add_argument("env", nargs="?", metavar="ENV", help="an id, name:value or module:Class")
    parser.add_argument("--list", action="store_true", help="show the criteria, then end")
    parser.add_argument("--only", metavar="ID,ID", help="only these and their preconditions")
    parser.add_argument("--episodes", type=int, default=8, metavar="N", help="tasks to play (8)")
    parser.add_argument("--tasks", type=int, default=0, metavar="N", help="play N tasks per agent")
    _data(parser)
    _sandbox(parser)


def _bench(parser: ArgumentParser) -> None:
    parser.description = help_texts.BENCH
    _json(parser)
    parser.add_argument("name", metavar="NAME", help="the benchmark (see above)")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="a real model (engine, gpu, real, weights)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="toy sizes: it runs, its figures say nothing"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the report (gpu)")


def _list(parser: ArgumentParser) -> None:
    parser.description = help_texts.LIST
    _json(parser)


def _new(parser: ArgumentParser) -> None:
    parser.description = help_texts.NEW
    parser.add_argument("what", choices=["env"], help="the part to write")
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and _")
    parser.add_argument("--into", type=Path, metavar="DIR", help="folder to write; default: NAME")
    parser.add_argument(
        "--harbor", action="store_true", help="a task in Harbor's format, for --env harbor:NAME"
    )
    _json(parser)


_COMMANDS = {
    "train": (_train, "train an agent, on this machine or on a cluster"),
    "serve": (_serve, "train on the episodes of other programs, in any language"),
    "eval": (_eval, "evaluate a model or a finished run on held-out tasks"),
    "audit": (_audit, "verify the recorded policy version of every trained token"),
    "ledger": (_ledger, "verify that every group was trained exactly once"),
    "replay": (_replay, "train a batch of a run again, and compare"),
    "export": (_export, "write episodes as supervised data, or a checkpoint as a model"),
    "reverify": (_reverify, "verify recorded rewards with the current environment"),
    "timeline": (_timeline, "write the events of a run as a trace"),
    "runs": (_runs, "list, compare and delete runs"),
    "inspect": (_inspect, "show runs in a browser, during training and afterwards"),
    "plan": (_plan, "predict the speed of a run"),
    "list": (_list, "list environments, agents and sandboxes, plugins included"),
    "check": (_check, "test whether an environment keeps the contract"),
    "new": (_new, "write a package with an environment of your own"),
    "doctor": (_doctor, "test the parts of this machine, and suggest fixes"),
    "engines": (_engines, "list, add and remove engines of a running run"),
    "workers": (_workers, "list, add and remove rollout workers of a running run"),
    "engine": (_engine, "serve a policy over the engine protocol"),
    "rollout": (_rollout, "run one rollout worker (started by `arl train`)"),
    "trainer": (_trainer, "run one trainer rank (started by `arl train`)"),
    "warm-up": (_warm_up, "run one rank of a warm-up (started by `arl train --init sft`)"),
    "bench": (_bench, "run a benchmark"),
}


def _json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _keys(parser: ArgumentParser) -> None:
    parser.epilog = key_table()
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        metavar="FILE",
        help="TOML configuration; again for a file on top",
    )


def _config(parser: ArgumentParser, *, action: str = "store") -> None:
    _keys(parser)
    several = "; again for more" if action == "append" else ""
    text = f"bundled, a folder, or a hub id{several}"
    parser.add_argument("--model", action=action, metavar="MODEL", help=text)
    parser.add_argument("--seed", type=int, metavar="N", help="seed of tasks and sampling")


def _training(parser: ArgumentParser) -> None:
    from agentgym_rl.config import preset_names

    parser.add_argument("--run", metavar="DIR", help="run folder (default: runs/<name>)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue a run that ended")
    parser.add_argument("--steps", type=int, metavar="N", help="training batches")
    parser.add_argument(
        "--cluster", metavar="TYPE", help="local, ray (on its nodes) or slurm (as a job)"
    )
    parser.add_argument("--address", metavar="HOST:PORT", help="address of Ray (default: auto)")
    parser.add_argument(
        "--dry-run", action="store_true", help="show the processes and commands, start nothing"
    )
    parser.add_argument(
        "--init", metavar="METHOD", help="sft: train on the conversations of --data FILE first"
    )
    names = ", ".join(preset_names())
    parser.add_argument("--preset", metavar="NAME", help=f"a published recipe: {names}")


def _who_plays(parser: ArgumentParser, engines: str = "embedded, vllm or sglang") -> None:
    parser.add_argument("--env", metavar="ID", help="environment: an id or module:Class")
    _data(parser)
    parser.add_argument("--agent", metavar="ID", help="agent: an id or module:Class")
    parser.add_argument("--engine", metavar="TYPE", help=engines)
    _sandbox(parser)


def _data(parser: ArgumentParser) -> None:
    parser.add_argument("--data", metavar="FILE", help="rows of tasks, if the env takes rows")


def _sandbox(parser: ArgumentParser) -> None:
    parser.add_argument("--sandbox", metavar="ID", help="local, docker, e2b or module:Class")
