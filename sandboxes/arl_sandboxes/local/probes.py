"""The probes of the kernel's features: each is tried in turn, in a separate process."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentgym_rl import SandboxError
from agentgym_rl.gym import Capabilities, Probe, ProbeReport

from .cgroup import Hierarchy
from .check import checked
from .interpreter import SlotConfig
from .processes import ended
from .slot import Slot

MACHINES = ("x86_64", "aarch64")
LOWEST_KERNEL = (5, 14)
TRIAL_TIMEOUT_S = 30.0
_SCRIPT = Path(__file__).parent / "inside" / "trial.py"
_LANDLOCK_SCRIPT = _SCRIPT.with_name("landlock_trial.py")

_SLOT_FIX = "can this user read the interpreter's folder, and programs enter TMPDIR?"
_INDEX = 99_999
"""The index of the slot for the trial; other slots count from 0."""
_DOCKER = "in Docker: --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
_KUBERNETES = "in Kubernetes: hostUsers: false and procMount: Unmasked"
_LANDLOCK = {
    errno.EOPNOTSUPP: "it is switched off: add landlock to the lsm= list the machine starts with",
    errno.ENOSYS: "needs Linux 6.2 or newer, built with Landlock (CONFIG_SECURITY_LANDLOCK)",
    errno.EPERM: "the container's filter refuses it: docker 23 or newer, or a profile that lets "
    "landlock_create_ruleset, landlock_add_rule and landlock_restrict_self through",
}
OVERLAY = "overlay"
"""The probe without which there are no sandboxes with images, and all else works."""
_SESSIONS = {False: ("python", "shell"), True: ("python",)}
"""The kinds of sessions: the key is True if there are no namespaces."""
_UBUNTU = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"


async def probe(config: SlotConfig, groups: Hierarchy | None, words: str) -> ProbeReport:
    """Run every probe; return the results and the capabilities if all required ones pass."""
    landlock = config.isolation == "landlock"
    probes = [_machine(), _kernel()]
    if all(found.ok for found in probes):
        probes += await _trials(config, by_landlock=landlock)
    needed = [found for found in probes if found.required]
    if all(found.ok for found in needed):
        needed.append(await _slot(config))
        probes.append(needed[-1])
    if probes[0].ok and not landlock and not all(found.ok for found in needed):
        probes.append(await _instead(config))
    probes.append(
        Probe(
            "cgroup",
            groups is not None,
            words,
            "memory is bounded for each process only; run as root, or in a delegated cgroup "
            "(systemd-run --user --scope -p Delegate=yes)",
            required=False,
        )
    )
    works = all(found.ok for found in probes if found.required)
    capabilities = Capabilities(
        network_isolated=works,
        process_isolated=works and not landlock,
        total_memory=works and groups is not None,
        disk=works and not landlock,
        exec=works and not landlock,
        sessions=frozenset(_SESSIONS[landlock] if works else ()),
        fork_snapshot=works and not landlock,
        images=works and any(found.name == OVERLAY and found.ok for found in probes),
    )
    return ProbeReport("local", probes, capabilities)


async def _instead(config: SlotConfig) -> Probe:
    """Check if `isolation="landlock"` works on a machine without namespaces; it is only advice."""
    config = replace(config, isolation="landlock")
    words = "would work here, for Python programs and sessions only (arl docs sandboxes)"
    failed = [found for found in await _trials(config, by_landlock=True) if not found.ok]
    if [found.name for found in failed] == ["folders"]:
        words += f"; but {failed[0].fix}"
    elif failed:
        why = "; ".join(f"{found.name}: {found.detail}" for found in failed)
        return Probe('isolation="landlock"', False, f"would not work either: {why}", required=False)
    return Probe('isolation="landlock"', True, words, required=False)


def _machine() -> Probe:
    ok = sys.platform == "linux" and platform.machine() in MACHINES
    return Probe(
        "machine",
        ok,
        f"{sys.platform} on {platform.machine()}",
        f"needs Linux on {' or '.join(MACHINES)}; use the docker or e2b backend",
    )


def _kernel() -> Probe:
    release = platform.release()
    digits = [part for part in release.replace("-", ".").split(".")[:2] if part.isdigit()]
    ok = tuple(map(int, digits)) >= LOWEST_KERNEL
    return Probe("kernel", ok, release, f"needs Linux {'.'.join(map(str, LOWEST_KERNEL))} or newer")


async def _trials(config: SlotConfig, *, by_landlock: bool) -> Sequence[Probe]:
    """Try each step of a slot separately; report the refused ones with their errno."""
    settings = [json.dumps({"read_only": config.read_only})] if by_landlock else []
    process = await asyncio.create_subprocess_exec(
        *config.command(_LANDLOCK_SCRIPT if by_landlock else _SCRIPT), *settings,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(TRIAL_TIMEOUT_S):
            out, err = await process.communicate()
    except TimeoutError:
        why = f"trying them took longer than {TRIAL_TIMEOUT_S:g} s"
        return [Probe(config.isolation, False, why, "is the machine overloaded?")]
    finally:
        if process.returncode is None:
            process.kill()
            await ended(lambda: process.returncode is not None)
    if process.returncode:
        why = err.decode("utf-8", "replace")[-500:] or f"exit code {process.returncode}"
        return [Probe(config.isolation, False, why, "can this user read the interpreter's folder?")]
    found = []
    for name, number, text in json.loads(out):
        detail = f"{errno.errorcode.get(number, number)}: {text}" if number else (text or "works")
        fix = _fix(name, number) if number else ""
        found.append(Probe(name, not number, detail, fix, required=name != OVERLAY))
    return found


def _fix(name: str, number: int) -> str:
    if name == "user namespace":
        if number == errno.ENOSPC:
            return "sudo sysctl -w user.max_user_namespaces=10000"
        if _restricted_by_apparmor():
            return _UBUNTU
        return (
            f"allow user namespaces: {_DOCKER}; {_KUBERNETES}; on Debian: sudo sysctl -w "
            "kernel.unprivileged_userns_clone=1"
        )
    if name in ("uid map", "mount namespace", "network, pid, ipc and uts namespaces"):
        return _UBUNTU if _restricted_by_apparmor() else f"{_DOCKER}; {_KUBERNETES}"
    if name in ("mount", "read-only mounts", "proc"):
        return f"{_DOCKER}; {_KUBERNETES}"
    if name == OVERLAY:
        return "images need overlayfs in user namespaces (Linux 5.11; with folders on tmpfs, 6.6)"
    if name in ("landlock", "landlock domain"):
        return _LANDLOCK.get(number, "needs Linux 6.2 or newer")
    if name == "users":
        return "run as a plain user, or give root CAP_SETUID, CAP_SETGID, CAP_CHOWN and CAP_KILL"
    if name == "folders":
        return 'take an interpreter that every user can read: python="/usr/bin/python3"'
    return "the kernel was built without it"


def _restricted_by_apparmor() -> bool:
    path = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    return path.exists() and path.read_text().strip() == "1" and os.getuid() != 0


async def _slot(config: SlotConfig) -> Probe:
    """Try a complete slot, with the configured interpreter and folders."""
    slot = Slot(_INDEX, config, None)
    try:
        await slot.start()
        slot.fresh(1)
        child = await slot.ready()
        if config.isolation == "landlock" and (wrong := await checked(slot, child)):
            return Probe("slot", False, wrong, "this is a bug, please report it")
    except (SandboxError, OSError) as error:
        return Probe("slot", False, str(error), _SLOT_FIX)
    finally:
        slot.close()
        await ended(slot.gone)
    return Probe("slot", True, config.python)
