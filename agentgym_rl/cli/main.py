"""The command line `arl`. One JSON object on stdout with --json; everything else on stderr."""

from __future__ import annotations

import os
import select
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import cast

from agentgym_rl.core import ArlError, ConfigError, cause_of, load_extensions, outdated
from agentgym_rl.runtime.log import kept_for_json
from agentgym_rl.runtime.memory import end_without_memory

from .output import in_colour, print_json
from .parse import parse
from .registry import load_command

Preparation = Callable[[Namespace], None]
_BEFORE = "before_commands"
"""The group of entry points of functions that get the arguments of a command before it runs."""
_READER_LEFT = 141
_EXIT_CODES: list[tuple[type[BaseException], int]] = [
    (KeyboardInterrupt, 130),
    (ConfigError, 2),
    (ArlError, 1),
    (TimeoutError, 1),
    (OSError, 1),
]
_SPINS = "10000"
"""The rounds in which a thread of OpenMP (GNU's) waits actively for the others, about 0.4 ms. With
its default, thirty times as many, two threads are ten times slower while another program is
busy."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run `arl`; exits with 0, 1 (failed), 2 (wrong use) or 130 (interrupted)."""
    end_without_memory()
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():  # read when torch is imported
        os.environ["GOMP_SPINCOUNT"] = _SPINS
    # Read by torch as well: a matrix gets pages of 2 MB, which are found and cleared faster.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    sys.path.insert(0, os.getcwd())  # `--env module:Class` finds modules of the current folder
    code = _main(sys.argv[1:] if argv is None else list(argv))
    from agentgym_rl.runtime.signals import leave_in_time  # asyncio, not for --help

    leave_in_time(code)
    sys.exit(code)


def _main(argv: list[str]) -> int:
    as_json = "--json" in argv and not {"-h", "--help"} & set(argv)
    try:
        with kept_for_json() if as_json else nullcontext():
            try:
                code = _run(argv)
            except (BrokenPipeError, SystemExit):  # SystemExit: --help, --version
                raise
            except BaseException as error:
                code = _explain(error, as_json=as_json)
        sys.stdout.flush()  # raises here if the reader has left, not at Python's exit
        return code
    except BrokenPipeError as error:
        return _without_reader() or _explain(error, as_json=False)


def _run(argv: list[str]) -> int:
    """Run a command and return its exit code.

    Raises:
        ArlError: an environment or an agent called `sys.exit`.
    """
    args = parse(argv)
    for prepare in cast("dict[str, Preparation]", load_extensions(_BEFORE, of=object)).values():
        prepare(args)
    try:
        return load_command(args.command).run(args)
    except SystemExit as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ArlError(
            f"{where.filename}, line {where.lineno}, in {where.name}: sys.exit({error.code!r}) was "
            f"called, which would end `arl {args.command}` without a result. An environment or an "
            "agent raises an error instead"
        ) from error


def _without_reader() -> int:
    """Return 141 if stdout has no reader (`arl list | head`), like a program ended by SIGPIPE;
    0 otherwise."""
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in stdout.poll(0)):
        return 0  # another pipe broke
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _READER_LEFT


def _explain(error: BaseException, *, as_json: bool) -> int:
    """Print one message with the cause of the end, and return the exit code.

    Errors of other kinds than `_EXIT_CODES` keep their traceback, unless a package is too old.
    """
    cause = cause_of(error)
    code = next((code for kind, code in _EXIT_CODES if isinstance(cause, kind)), None)
    message = str(cause) or type(cause).__name__
    notes = getattr(cause, "__notes__", [])
    if isinstance(cause, KeyboardInterrupt):
        message = "; ".join(("interrupted", *map(str, cause.args)))
    if code is None and (old := outdated()):
        code, message = 2, f"{old} (it may be the cause of this {type(cause).__name__})"
    elif code is None:
        from agentgym_rl.runtime import hidden_modules

        code, message = (2, hint) if (hint := hidden_modules(cause)) else (None, message)
    if as_json:
        print_json({"error": {"type": type(cause).__name__, "message": message}})
    if code is None:
        raise error
    text = in_colour("error", f"arl: {message}", sys.stderr)
    print("\n".join((text, *notes)), file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
