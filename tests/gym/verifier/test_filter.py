"""The workers' system-call filter: its verdicts (tests/security compares the numbers)."""

import sys
from pathlib import Path

import pytest

from tests.kit.cases import cases

sys.path.insert(0, str(Path(__file__).parents[2] / "security"))  # where bpf.py is

from arl_verifier.inside import seccomp
from bpf import ALLOWED, KILLED, evaluate

from arl_isolation.bpf import MACHINES, NUMBERS

PID = 4711
FORK, THREAD = 0x1200011, 0x3D0F00
TESTED = seccomp.tested(PID)


def verdict(name: str, *arguments: int, machine: str = "x86_64") -> str:
    column, arch = MACHINES[machine]
    number = NUMBERS[name][column]
    return evaluate(seccomp.program(PID, machine), arch, number, *arguments)


@cases("machine", MACHINES)
def test_nothing_but_what_is_listed_is_allowed(machine):
    column, arch = MACHINES[machine]
    program = seccomp.program(PID, machine)
    allowed = {n for n in range(600) if evaluate(program, arch, n) == ALLOWED}
    listed = {NUMBERS[name][column] for name in seccomp.ALLOWED} - {None}
    tested = {NUMBERS[name][column] for name in TESTED} - {None}
    assert listed <= allowed <= listed | tested


@cases("machine", MACHINES)
def test_other_machines_calls_end_the_process(machine):
    assert evaluate(seccomp.program(PID, machine), 0x40000003, 1) == KILLED


def test_the_x32_numbers_are_no_way_in():
    arch = MACHINES["x86_64"][1]
    assert evaluate(seccomp.program(PID, "x86_64"), arch, 0x40000000 | 59) == "EPERM"


VERDICTS = {
    "read": (("openat", -100, 0, 0o2000000), ALLOWED),
    "write": (("openat", -100, 0, 1), "EROFS"),
    "read_write": (("openat", -100, 0, 2), "EROFS"),
    "create": (("openat", -100, 0, 0o100), "EROFS"),
    "truncate": (("openat", -100, 0, 0o1000), "EROFS"),
    "temporary": (("openat", -100, 0, 0o20200000), "EROFS"),
    "old_open": (("open", 0, 1), "EROFS"),
    "fork": (("clone", FORK), "EPERM"),
    "thread": (("clone", THREAD), ALLOWED),
    "clone3": (("clone3",), "ENOSYS"),
    "kill_itself": (("kill", PID, 9), ALLOWED),
    "kill_another": (("kill", PID + 1, 9), "EPERM"),
    "kill_all": (("kill", -1, 9), "EPERM"),
    "kill_group": (("kill", 0, 9), "EPERM"),
    "abort": (("tgkill", PID, PID, 6), ALLOWED),
    "owner": (("fcntl", 0, 8, 1), "EPERM"),
    "typing": (("ioctl", 0, 0x5412), "EPERM"),
    "outlive": (("prctl", 1, 0), "EPERM"),
    "name": (("prctl", 15, 0), ALLOWED),
    "see_limit": (("prlimit64", 0, 7, 0), ALLOWED),
    "set_limit": (("prlimit64", 0, 7, 1 << 40), "EPERM"),
    "other_limit": (("prlimit64", PID + 1, 7, 0), "EPERM"),
}


@cases("call, expected", VERDICTS.values(), ids=VERDICTS)
@cases("machine", MACHINES)
def test_arguments_decide(machine, call, expected):
    name, *arguments = call
    if machine == "aarch64" and name == "open":
        pytest.skip("no such call there")
    assert verdict(name, *arguments, machine=machine) == expected
