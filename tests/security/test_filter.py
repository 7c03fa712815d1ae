"""The system-call filter: its numbers against the kernel's headers, its verdicts one by one."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import arl_sandboxes.local
import pytest

from arl_isolation.bpf import NUMBERS
from tests.kit.cases import cases

INSIDE = Path(arl_sandboxes.local.__file__).parent / "inside"
sys.path.insert(0, str(INSIDE))  # as in the sandbox's own interpreter
sys.path.insert(0, str(Path(__file__).parent))

from bpf import ALLOWED, EQUAL, KILLED, LOAD, RETURN, evaluate, instructions  # noqa: E402

try:
    import landlock_seccomp  # pyright: ignore[reportMissingImports]
    import seccomp  # pyright: ignore[reportMissingImports]
    import syscalls  # pyright: ignore[reportMissingImports]
finally:
    sys.path.remove(str(INSIDE))
    # Other tests have modules of such names.
    for name in ("landlock_seccomp", "seccomp", "syscalls"):
        sys.modules.pop(name, None)

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
FOREIGN = {"x86_64": 0x40000003, "aarch64": 0x40000028}  # i386, 32-bit arm
HEADERS = (
    Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    Path("/usr/include/asm-generic/unistd.h"),
)
NEW_NAMESPACES = {
    "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
    "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip
FORK = 0x1200011  # what glibc's fork passes to clone: SIGCHLD and two tid flags
THREAD = 0x3D0F00  # what pthread_create passes
PID = 4711


def header(column: int) -> dict[str, int]:
    if not HEADERS[column].exists():
        pytest.skip(f"{HEADERS[column]} is not installed (linux-libc-dev)")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[column].read_text())
    return {name: int(number) for name, number in found}


def verdict(machine: str, name: str, *arguments: int) -> str:
    column, arch = MACHINES[machine]
    number = NUMBERS[name][column]
    assert number is not None
    return evaluate(seccomp.program(machine), arch, number, *arguments)


@cases("machine", MACHINES)
def test_numbers_are_those_of_the_headers(machine: str) -> None:
    column, _ = MACHINES[machine]
    numbers = header(column)
    numbers |= {"newfstatat": numbers.get("newfstatat", numbers.get("fstatat", -1))}
    wrong = {
        name: (pair[column], numbers.get(name))
        for name, pair in NUMBERS.items()
        if pair[column] != numbers.get(name)
        and (name in numbers or pair[column] is not None)
        # An older header does not have the newest calls.
        and not (name not in numbers and (pair[column] or 0) >= max(numbers.values()))
    }
    assert not wrong
    assert len(numbers) > 250


@cases("machine", MACHINES)
@cases("without_namespaces", [False, True])
def test_every_jump_stays_inside_and_the_end_is_a_verdict(
    machine: str, without_namespaces: bool
) -> None:
    code = instructions(
        landlock_seccomp.program(PID, machine) if without_namespaces else seccomp.program(machine)
    )
    assert 100 < len(code) < 4096
    for at, (kind, yes, no, operand) in enumerate(code):
        assert max(at + 1 + yes, at + 1 + no) < len(code) or kind == RETURN
        assert kind != LOAD or (operand % 4 == 0 and operand < 64)
    assert code[-1][0] == RETURN


@cases("machine", MACHINES)
def test_denied_calls_are_denied_whatever_their_arguments(machine: str) -> None:
    for name in named(machine, syscalls.DENIED):
        for argument in (0, 1, (1 << 64) - 1):
            assert verdict(machine, name, argument, argument) == "EPERM", name


@cases("machine", MACHINES)
def test_the_parts_of_process_1_and_of_its_children_make_the_whole(machine: str) -> None:
    """The kernel goes by the stricter verdict of the two."""
    arch = MACHINES[machine][1]
    whole = seccomp.program(machine)
    common = seccomp.program(machine, without=seccomp.SERVERS)
    rest = seccomp.only(seccomp.SERVERS, machine)
    for number in (*range(syscalls.HIGHEST + 9), 0x40000000, -1):
        for arguments in ((0, 0), (1, 1), (FORK, 4), (1 << 32, 1 << 32)):
            found = [evaluate(part, arch, number, *arguments) for part in (common, rest)]
            expected = evaluate(whole, arch, number, *arguments)
            assert next((v for v in found if v != ALLOWED), ALLOWED) == expected, number
    for name in seccomp.SERVERS:
        number = NUMBERS[name][MACHINES[machine][0]]
        assert number is not None
        assert evaluate(common, arch, number) == ALLOWED


@cases("machine", MACHINES)
def test_only_one_socket_family_is_left(machine: str) -> None:
    for call in ("socket", "socketpair"):
        allowed = [n for n in range(64) if verdict(machine, call, n, 1) == ALLOWED]
        assert allowed == [1]
        assert verdict(machine, call, 40, 1) == "EAFNOSUPPORT"  # vsock
        # The kernel looks at 32 bits of it, so must the filter.
        assert verdict(machine, call, (1 << 32) + 40, 1) == "EAFNOSUPPORT"


@cases("machine", MACHINES)
@cases("namespace", NEW_NAMESPACES)
def test_clone_makes_no_namespaces(machine: str, namespace: str) -> None:
    assert verdict(machine, "clone", NEW_NAMESPACES[namespace] | 17) == "EPERM"


@cases("machine", MACHINES)
def test_nobody_asks_what_all_programs_of_the_machine_share(machine: str) -> None:
    for name in syscalls.PAGE_CACHE:
        assert verdict(machine, name, 3, 0, 0, 4) == "ENOSYS", name
    refused = {
        pair
        for pair in itertools.product(range(64), range(128))
        if verdict(machine, "getsockopt", 3, *pair) != ALLOWED
    }
    assert refused == {(1, 57)}  # SOL_SOCKET, SO_COOKIE
    advices = [n for n in range(128) if verdict(machine, "madvise", 0, 0, n) != ALLOWED]
    assert advices == [21]  # MADV_PAGEOUT


@cases("machine", MACHINES)
def test_clone_makes_processes_and_threads(machine: str) -> None:
    assert verdict(machine, "clone", FORK) == verdict(machine, "clone", THREAD) == ALLOWED
    assert verdict(machine, "clone3") == "ENOSYS"


@cases("machine", MACHINES)
def test_foreign_architectures_are_killed(machine: str) -> None:
    other = next(arch for name, (_, arch) in MACHINES.items() if name != machine)
    for arch in (FOREIGN[machine], other, 0):
        assert evaluate(seccomp.program(machine), arch, 1) == KILLED
    own = MACHINES[machine][1]
    assert evaluate(seccomp.program(machine), own, 0x40000000 | 57) == KILLED  # x32
    assert evaluate(seccomp.program(machine), own, -1) == KILLED


@cases("machine", MACHINES)
def test_calls_nobody_has_looked_at_do_not_exist(machine: str) -> None:
    own = MACHINES[machine][1]
    for number in (syscalls.HIGHEST + 1, 500, 1000, 0x3FFFFFFF):
        assert evaluate(seccomp.program(machine), own, number) == "ENOSYS"
    assert evaluate(seccomp.program(machine), own, syscalls.HIGHEST) == ALLOWED


@cases("machine", MACHINES)
def test_limits_and_priorities_are_ones_own_only(machine: str) -> None:
    for name in (*syscalls.OWN_ONLY, "prlimit64"):
        assert verdict(machine, name, 0, 7, 1) == ALLOWED, name
        assert verdict(machine, name, 1, 7, 1) == "EPERM", name
    for name, itself in syscalls.OWN_ONLY_SECOND.items():
        assert verdict(machine, name, itself, 0, 5) == ALLOWED, name
        for which, who in ((itself, 1), (itself + 1, 0), (itself + 2, 0)):
            assert verdict(machine, name, which, who, 5) == "EPERM", name


@cases("machine", MACHINES)
def test_the_core_limit_can_be_asked_for_and_not_changed(machine: str) -> None:
    assert verdict(machine, "prlimit64", 0, 4, 0, 99) == ALLOWED
    assert verdict(machine, "prlimit64", 0, 4, 99) == "EPERM"
    assert verdict(machine, "prlimit64", 0, 4, 1 << 32) == "EPERM"
    assert verdict(machine, "setrlimit", 4, 99) == "EPERM"
    assert verdict(machine, "setrlimit", 7, 99) == ALLOWED


@cases("machine", MACHINES)
def test_nobody_types_at_a_terminal(machine: str) -> None:
    assert verdict(machine, "ioctl", 0, 0x5412) == verdict(machine, "ioctl", 0, 0x541C) == "EPERM"
    assert verdict(machine, "ioctl", 0, (1 << 32) + 0x5412) == "EPERM"
    assert verdict(machine, "ioctl", 0, 0x5401) == verdict(machine, "ioctl", 0, 0x5421) == ALLOWED


# ---------------------------------------------------------------------- no namespace around it
def without_namespaces(machine: str, name: str, *arguments: int) -> str:
    """The verdict on a program that no namespace surrounds, and whose number is PID."""
    column, arch = MACHINES[machine]
    number = NUMBERS[name][column]
    assert number is not None
    return evaluate(landlock_seccomp.program(PID, machine), arch, number, *arguments)


def named(machine: str, *tables: Sequence[str]) -> list[str]:
    """The calls of some tables that the machine has."""
    column = MACHINES[machine][0]
    return [name for table in tables for name in table if NUMBERS[name][column] is not None]


@cases("machine", MACHINES)
def test_without_namespaces_the_rest_is_as_it_was(machine: str) -> None:
    column, arch = MACHINES[machine]
    assert evaluate(landlock_seccomp.program(PID, machine), FOREIGN[machine], 1) == KILLED
    assert evaluate(landlock_seccomp.program(PID, machine), arch, 0x40000000 | 57) == KILLED
    for name in named(machine, syscalls.DENIED):
        assert without_namespaces(machine, name, 0, 0) == "EPERM", name
    changed = {"clone", "ioctl", "socket", "socketpair", "prctl", "fcntl", "fallocate"}
    changed |= {*syscalls.STARTS, *syscalls.SIGNALS, *syscalls.DENIED_WITHOUT_NAMESPACES}
    touched = {NUMBERS[name][column] for name in changed}
    for number in set(range(syscalls.HIGHEST + 9)) - touched:
        for first in (0, 1, PID):
            was = evaluate(seccomp.program(machine), arch, number, first, 7, 1)
            assert (
                evaluate(landlock_seccomp.program(PID, machine), arch, number, first, 7, 1) == was
            ), number


@cases("machine", MACHINES)
def test_without_namespaces_there_are_no_processes_threads_or_programs(machine: str) -> None:
    for name in named(machine, syscalls.STARTS):
        assert without_namespaces(machine, name, 1, 1) == "EPERM", name
    for flags in (FORK, 17, 0, 0x4111, 0x8011, *NEW_NAMESPACES.values()):
        assert without_namespaces(machine, "clone", flags) == "EPERM"
    assert without_namespaces(machine, "clone", THREAD) == "EAGAIN"
    assert without_namespaces(machine, "clone3") == "ENOSYS"


@cases("machine", MACHINES)
def test_without_namespaces_there_is_no_socket_but_a_pair_of_streams(machine: str) -> None:
    for family in range(64):
        for kind in (1, 2, 3, 5, 0x80001, 0x80801):
            assert without_namespaces(machine, "socket", family, kind) == "EACCES"
            streams = family == 1 and kind & 15 == 1
            assert without_namespaces(machine, "socketpair", family, kind) == (
                ALLOWED if streams else "EACCES"
            )
    assert without_namespaces(machine, "socketpair", (1 << 32) + 1, 2) == "EACCES"
    for name in ("bind", "listen", "accept", "accept4", "connect"):
        assert without_namespaces(machine, name, 3, 0) == "EPERM"


@cases("machine", MACHINES)
def test_without_namespaces_signals_are_ones_own_only(machine: str) -> None:
    for name in syscalls.SIGNALS:
        assert without_namespaces(machine, name, PID, PID) == ALLOWED, name
        assert without_namespaces(machine, name, (1 << 32) + PID, 9) == ALLOWED, (
            name
        )  # the kernel sees 32 bits
        for other in (0, -1, -PID, 1, PID - 1, PID + 1, PID + (1 << 31)):
            assert without_namespaces(machine, name, other, PID) == "EPERM", (name, other)
    assert without_namespaces(machine, "prctl", 1, 0) == "EPERM"  # to outlive one's slot
    assert (
        without_namespaces(machine, "prctl", 15, 0)
        == without_namespaces(machine, "prctl", 38, 1)
        == ALLOWED
    )


@cases("machine", MACHINES)
def test_without_namespaces_handles_have_no_owner_lease_or_watch(machine: str) -> None:
    allowed = {
        number
        for number in range(2048)
        if without_namespaces(machine, "fcntl", 0, number) == ALLOWED
    }
    assert allowed == {*range(8), 36, 37, 38, 1030, 1032, 1034}
    for number in (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451):
        assert without_namespaces(machine, "ioctl", 0, number) == ALLOWED
        assert without_namespaces(machine, "ioctl", 0, number ^ 0x8000) == "EPERM"
    for number in (0x8901, 0x8902, 0x5452, 0x5412, 0x40086602, 0xC0185879, 0):
        assert without_namespaces(machine, "ioctl", 0, number) == "EPERM"


@cases("machine", MACHINES)
def test_without_namespaces_files_keep_their_attributes(machine: str) -> None:
    for name in named(machine, syscalls.DENIED_WITHOUT_NAMESPACES):
        for first in (0, 3, PID, -100):
            assert without_namespaces(machine, name, first, PID) == "EPERM", name
    assert without_namespaces(machine, "fallocate", 3, 0) == ALLOWED
    assert without_namespaces(machine, "fallocate", 3, 1) == "ENOTSUP"


def test_without_namespaces_ordinary_calls_are_allowed() -> None:
    """The control: read, write, open, mmap, exit_group, and more that Python cannot be without."""
    code = landlock_seccomp.program(PID, "x86_64")
    for number in (0, 1, 2, 3, 5, 9, 11, 12, 13, 14, 22, 35, 39, 60, 82, 83, 87, 231, 257, 318):
        assert evaluate(code, MACHINES["x86_64"][1], number, 3, 3, 3) == ALLOWED, number


def test_the_interpreter_here_tells_right_from_wrong() -> None:
    """The control: a program with a wrong jump does give another verdict."""
    code = instructions(seccomp.program("x86_64"))
    column, arch = MACHINES["x86_64"]
    at = next(i for i, item in enumerate(code) if item[0] == EQUAL and item[3] == 41)
    import struct

    bad = [*code[:at], (EQUAL, 0, 0, 41), (LOAD, 0, 0, 0), *code[at + 1 :]]
    broken = b"".join(struct.pack("HBBI", *item) for item in bad)
    assert evaluate(broken, arch, NUMBERS["mount"][column] or 0) != "EPERM"
