"""Runs programs inside a container or virtual machine, for a host that is outside.

    python3 -I -X utf8 -c SOURCE [--work /box] [--scratch /tmp,/dev/shm] [--own-pid-namespace]
        [--preimport json,re]

SOURCE (or a file with it) is `source()`: the modules of `inside/` as one standalone text of the
standard library, Python 3.8 or newer. It lives as long as its standard input is open. Of the image
it needs `ctypes` and, for shell sessions, bash; of the machine that `--work` is an existing folder
the user may write to. Started through a shell, it is to replace it (`exec python3 ...`).

Protocol: one JSON object per line, requests on standard input, replies on standard output, bytes as
base64. A request is {"id": N, "op": NAME, ...}; its reply is {"id": N, "ok": {...}} or
{"id": N, "error": TEXT, "errno": NUMBER or 0}. Replies come in any order. The first line, unasked:
{"id": 0, "ok": {"protocol": 1, "python": "3.11.2", "pid": 1, "sweep": "all" or "descendants"}}.

    run_python  code, stdin, files {path: bytes}, collect [path], limits  -> RESULT
    exec        argv, cwd, env, and stdin, files, collect, limits         -> RESULT
    cancel      of: the id of one of those; it still gets its reply       -> {}
    reset                                                                 -> {}
    open_session  kind "python" or "shell", limits                        -> {"session": S}
    cell        session, code, timeout_s                                  -> RESULT
    interrupt   session                                                   -> {}
    fork        session (a Python one)                                    -> {"session": S}
    close_session  session                                                -> {}
    write_files files, limits                                             -> {}
    read_file   path, max_bytes                                           -> {"data": bytes}
    list_files                                                            -> {"files": {path: size}}
    collect     paths            -> {"files": {path: bytes}, "skipped_files": [[path, why]]}

Paths are relative to the work folder. All fields but `code`, `argv`, `kind`, `session`, `path` and
`limits` may be left out.
limits: {"wall_s", "cpu_s", "memory_mb", "file_mb", "open_files", "output_bytes"}, and "processes"
only where the user of the programs has no other process on the machine (the kernel counts them by
user; the runner's own two are not counted in).
RESULT: status, exit_code, signal, stdout, stderr, truncated, wall_ms, cpu_ms, max_rss_kb,
killed_processes, state_lost, files, skipped_files, as in `agentgym_rl.gym.sandbox.ExecResult`.

One program runs at a time, others wait; cells of sessions run beside it. `reset` waits for its turn
as a program does, then ends every session and process, and empties the work folder and those of
`--scratch`, where programs may write, too. A runner that cannot do that says so
({"id": 0, "error": TEXT}) and exits.

When a program ends, every process it left is killed, then its files are collected. While sessions
are open, their processes (by ancestry and by kernel session) are spared. `--own-pid-namespace` says
that without sessions kill(-1) may be used, which no fork outruns; it is refused as root, and,
unless this is process 1, where another process of the same user is about.

Programs and sessions are not forks of this process but of its *zygote*, an interpreter of its own
that gets handles and nothing else: each newborn reads its order over a socket. So no byte of one
request, or of its output, is in the memory of the program of another.

What programs cannot do: write to the protocol (they have pipes of their own and no handle of this
process; its /proc folder is closed to them, and so is ptrace). What they can: they have the same
user, so unless this is process 1, and where there is no Landlock (kernels before 6.12,
gVisor), they can kill it, which the host sees as a lost sandbox; there they can also kill or stop
the zygote, which is replaced, and what runs beside them. They share the sandbox's files: a verdict
needs a sandbox of its own.
"""

from __future__ import annotations

from pathlib import Path

PARTS = ("loop", "clear", "files", "domain", "program", "repl", "zygote", "births", "jobs", "sweep")
PARTS += ("sessions", "serve")
"""Modules of `inside/`, in the order they are loaded; a later one may import the earlier ones."""
_PREIMPORT = """
json re math cmath random collections collections.abc itertools functools heapq bisect string
typing dataclasses datetime fractions decimal statistics traceback io operator copy time array
enum textwrap linecache ast atexit
"""
PREIMPORT = _PREIMPORT.split()
"""Loaded once, so that no program has to; for `--preimport`."""

_LOADER = """
import sys, types

PACKAGE = "arl_runner"
package = sys.modules[PACKAGE] = types.ModuleType(PACKAGE)
package.__path__ = []
for name, text in PARTS.items():
    module = sys.modules[f"{PACKAGE}.{name}"] = types.ModuleType(f"{PACKAGE}.{name}")
    module.__package__ = PACKAGE
    setattr(package, name, module)
    exec(compile(text, f"<runner {name}>", "exec"), module.__dict__)
package.serve.main()
"""


def source() -> str:
    """The whole runner, for an interpreter that has nothing but its standard library."""
    folder = Path(__file__).parent / "inside"
    texts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in PARTS}
    return f"PARTS = {texts!r}\n{_LOADER}"
