"""The probes of the e2b backend: the SDK, a key, and an answer of E2B."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from agentgym_rl import SandboxError, SandboxUnavailable
from agentgym_rl.core import install_command
from agentgym_rl.gym import Capabilities, Probe, ProbeReport

if TYPE_CHECKING:
    from .account import Account

SDK = (2, 63)
"""The oldest tested version; the next major version will lack `api_url` and `sandbox_url`."""
KEY_FIX = "set E2B_API_KEY to a key of https://e2b.dev/dashboard?tab=keys"


def capabilities(internet: bool) -> Capabilities:
    """Return the capabilities. `total_memory` is False: the template sets the machine's memory."""
    return Capabilities(
        network_isolated=not internet,
        process_isolated=True,
        total_memory=False,
        disk=True,
        exec=True,
        sessions=frozenset({"python", "shell"}),
        fork_snapshot=True,
        images=True,
    )


def sdk() -> Probe:
    """Check that the installed SDK has a supported version."""
    fix = install_command("e2b")
    found = version("e2b")
    major, minor = (int(part) for part in found.split(".")[:2])
    fits = major == SDK[0] and minor >= SDK[1]
    return Probe("sdk", fits, f"e2b {found}; expected >= {SDK[0]}.{SDK[1]}, < {SDK[0] + 1}", fix)


def key(api_key: str) -> Probe:
    detail = f"a key of {len(api_key)} characters" if api_key else "no API key"
    return Probe("key", bool(api_key), detail, KEY_FIX)


async def answer(account: Account) -> Probe:
    """Check that E2B answers, and accepts the key."""
    try:
        await account.mine()
    except SandboxUnavailable as error:
        return Probe("account", False, str(error), KEY_FIX)
    except SandboxError as error:
        fix = "check the network, and https://status.e2b.dev"
        return Probe("account", False, str(error), fix)
    return Probe("account", True, "E2B answers, and takes the key")


async def report(account: Account | None, api_key: str, internet: bool) -> ProbeReport:
    """Run all probes; `account` is None if the SDK or the key is missing."""
    probes = [sdk(), key(api_key)]
    if account is not None:
        probes.append(await answer(account))
    return ProbeReport("e2b", probes, capabilities(internet))
