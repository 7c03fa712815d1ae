"""The runner: it runs programs inside a container or virtual machine, for a host outside.

    python3 -I -X utf8 -X int_max_str_digits=0 -c SOURCE [--work /box] [--scratch /tmp,/dev/shm]
        [--own-pid-namespace] [--preimport json,re] [--image]

SOURCE (or a file with it) is `source()`: the modules of `inside/`, and some of `arl_isolation`, as
one standalone text that needs only the standard library of Python 3.8 or newer. The runner lives as
long as its standard input is open. The image must have `ctypes` and, for shell sessions, bash;
`--work` must be an existing folder that the user may write to. A shell must start the runner by
`exec python3 ...`.

Protocol: one JSON object per line, requests on standard input, replies on standard output, bytes as
base64. A request is {"id": N, "op": NAME, ...}; its reply is {"id": N, "ok": {...}} or
{"id": N, "error": TEXT, "errno": NUMBER or 0}. Replies come in any order. The first line is
{"id": 0, "ok": {"protocol": 1, "python": "3.11.2", "pid": 1, "sweep": "all" or "descendants"}}.

    run_python  code, stdin, files {path: bytes}, collect [path], limits  -> RESULT
    exec        argv, cwd, env, and stdin, files, collect, limits         -> RESULT
    cancel      of: the id of such a request, which still gets its reply  -> {}
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
    listen, unlisten  port, for connections to the host (inside/ports.py) -> {}
    more, send, shut, drop  conn (send: data)                             -> {}

Paths are relative to the work folder; with `--image`, which stands for a sandbox whose files are
its own altogether, they may be absolute, programs keep the environment of the container, and
`reset` leaves the files: they come back with another runner. All fields are optional except
`code`, `argv`, `kind`, `session`, `path` and `limits`.
limits: {"wall_s", "cpu_s", "memory_mb", "file_mb", "open_files", "output_bytes"}, and "processes"
only if the user of the programs has no other process on the machine (the kernel counts processes by
user; the runner and its fork server are not counted in).
RESULT: status, exit_code, signal, stdout, stderr, truncated, wall_ms, cpu_ms, max_rss_kb,
killed_processes, state_lost, files, skipped_files, as in `agentgym_rl.gym.sandbox.ExecResult`.

One program runs at a time and others wait; cells of sessions run at the same time. `reset` waits
for its turn as a program does, then ends every session and process, and empties the work folder and
the folders of `--scratch`, which programs may also write to. A runner that cannot do so reports
{"id": 0, "error": TEXT} and exits.

When a program ends, every process it left is killed, then its files are collected. While sessions
are open, their processes (by ancestry and by kernel session) are spared. With
`--own-pid-namespace`, the runner may use kill(-1), which no fork outruns, while no session is open.
The option is refused for root (with `--image`: unless the runner is process 1) and, unless the
runner is process 1, if another process of the same user exists.

Programs and sessions are not forks of this process but of its *fork server*, a separate interpreter
that receives file descriptors and nothing else: each new process reads its order over a socket. So
no byte of a request, or of its output, is in the memory of the program of another request.

Programs cannot write to the protocol: they have pipes of their own and no file descriptor of this
process, whose /proc folder is closed to them, and so is ptrace. But programs have the same user as
the runner. Unless the runner is process 1, and if there is no Landlock (kernels before 6.12,
gVisor), they can kill the runner, which the host sees as a lost sandbox. Without Landlock they can
also kill or stop the fork server, which is replaced, and the sessions of the sandbox. Programs
share the sandbox's files: a verdict needs a sandbox of its own.
"""

from __future__ import annotations

from pathlib import Path

from arl_isolation import files, locks, programs, removal

PARTS = ("loop", "files", "domain", "program", "repl", "fork_server", "forking", "jobs", "sweep")
PARTS += ("sessions", "ports", "serve")
"""The modules of `inside/` in loading order; a later one may import the earlier ones."""
_PREIMPORT = """
json re math cmath random collections collections.abc itertools functools heapq bisect string
typing dataclasses datetime fractions decimal statistics traceback io operator copy time array
enum textwrap linecache ast atexit
"""
PREIMPORT = _PREIMPORT.split()
"""The modules that `--preimport` loads once, so that no program has to."""

_LOADER = """
import sys, types

for name, text in PARTS.items():
    package, _, last = name.rpartition(".")
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = []
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__ = package
    setattr(sys.modules[package], last, module)
    exec(compile(text, f"<runner {last}>", "exec"), module.__dict__)
sys.modules["arl_runner.serve"].main()
"""


def source() -> str:
    """Return the source of the complete runner, which needs only the standard library."""
    folder = Path(__file__).parent / "inside"
    paths = {
        module.__name__: Path(str(module.__file__)) for module in (files, locks, programs, removal)
    }
    paths |= {f"arl_runner.{name}": folder / f"{name}.py" for name in PARTS}
    texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    return f"PARTS = {texts!r}\n{_LOADER}"
