"""The containers' system-call profile, compared with the local filter and the machine's headers."""

import json
import re
from pathlib import Path

import pytest
from arl_sandboxes.docker import seccomp
from arl_sandboxes.local.inside import syscalls

from tests.kit.cases import cases

TABLES = (
    syscalls.DENIED, syscalls.OWN_ONLY, syscalls.OWN_ONLY_SECOND, syscalls.PAGE_CACHE
)  # fmt: skip
BY_ARGUMENT = {"clone", "clone3", "socket", "socketpair", "prlimit64", "setrlimit"}
_OBSOLETE = """
afs_syscall epoll_ctl_old epoll_wait_old get_thread_area getpmsg putpmsg security set_thread_area
tuxcall vserver
"""
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def test_nothing_is_allowed_that_the_local_filter_denies():
    special = BY_ARGUMENT.union(*TABLES)
    assert special & set(seccomp.ALLOWED) == set(seccomp.DOMAINS)
    assert len(set(seccomp.ALLOWED)) == len(seccomp.ALLOWED)


@pytest.mark.skipif(not HEADER.exists(), reason="no kernel headers here (linux-libc-dev)")
def test_every_system_call_was_looked_at():
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    known = BY_ARGUMENT.union(seccomp.ALLOWED, _OBSOLETE.split(), *TABLES)
    assert {n for n, number in numbers.items() if int(number) <= syscalls.HIGHEST} <= known


@cases("machine", seccomp.ARCHITECTURES)
def test_the_profile_allows_by_name_only(machine):
    made = json.loads(seccomp.profile(machine))
    assert made["defaultAction"] == "SCMP_ACT_ERRNO"
    assert made["architectures"] == [seccomp.ARCHITECTURES[machine]]
    free = [rule for rule in made["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    assert [rule["names"] for rule in free if not rule["args"]] == [seccomp.ALLOWED]


def test_a_machine_without_a_table_is_refused():
    with pytest.raises(KeyError):
        seccomp.profile("riscv64")
