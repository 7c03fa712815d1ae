"""Runs the local backend's probes while the kernel refuses one call; prints them as JSON.

The refusal is a seccomp filter of this process, as a container's would be. Arguments: the call's
name, the name of the errno, and the isolation to ask for.
"""

import asyncio
import ctypes
import errno
import json
import os
import platform
import struct
import sys

from arl_sandboxes.local import LocalBackend

from agentgym_rl.core import SandboxUnavailable

SYSTEM_PYTHON = "/usr/bin/python3"
NUMBERS = {
    "unshare": (272, 97),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "landlock_create_ruleset": (444, 444),
    "setresuid": (117, 147),
}
_LOAD, _EQUAL, _RETURN, _ALLOW, _ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000


def refuse(call: str, number: int) -> None:
    which = NUMBERS[call][platform.machine() != "x86_64"]
    rows = [
        (_LOAD, 0, 0, 0),
        (_EQUAL, 0, 1, which),
        (_RETURN, 0, 0, _ERRNO | number),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_filter, mode = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_filter, mode, program, 0, 0) == 0, ctypes.get_errno()


async def main() -> None:
    if len(sys.argv) > 1:
        refuse(sys.argv[1], getattr(errno, sys.argv[2]))
    lone = sys.argv[3:] == ["landlock"]
    python = SYSTEM_PYTHON if lone and os.access(SYSTEM_PYTHON, os.X_OK) else ""
    backend = LocalBackend(
        slots=1, isolation="landlock" if lone else "namespaces", python=python, cgroup="off"
    )
    report = await backend.probe()
    rows = [[probe.name, probe.ok, probe.detail, probe.fix] for probe in report.probes]
    found = {"ok": report.ok, "probes": rows, "complaint": report.complaint(), "said": ""}
    try:
        async with backend, await backend.create() as sandbox:
            found["said"] = (await sandbox.run_python("print(6 * 7)")).stdout_text
    except SandboxUnavailable as error:
        found["refusal"] = str(error)
    print(json.dumps(found))


asyncio.run(main())
