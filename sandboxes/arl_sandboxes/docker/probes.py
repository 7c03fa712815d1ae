"""The probes of the daemon, the image and the runtime: queries, and a trial of one container."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from agentgym_rl import SandboxError
from agentgym_rl.gym import Capabilities, Limits, Probe, ProbeReport
from arl_sandboxes.runner_words import RunnerError

from . import seccomp
from .container import ContainerConfig, Daemon, remove, start

OLDEST_API = (1, 40)
DEFAULT_IMAGE = "arl-sandbox:latest"
_NO_DAEMON = (
    "start docker, or set DOCKER_HOST, or start a daemon of our own: "
    'eval "$(python scripts/dockerd.py start)"'
)
_LIMITS = Limits(memory_mb=256, disk_mb=8, file_mb=4)


def unreachable(error: Exception) -> ProbeReport:
    """Report that the daemon does not answer."""
    fix = _NO_DAEMON
    if "Permission denied" in str(error):
        fix = "join the group docker (sudo usermod -aG docker $USER), or run as root"
    return ProbeReport("docker", [Probe("daemon", False, str(error), fix)], Capabilities())


async def probe(daemon: Daemon, config: ContainerConfig) -> ProbeReport:
    """Run every probe; return the results and the capabilities if all required ones pass."""
    try:
        info = await daemon.call(daemon.api.info)
    except SandboxError as error:
        return unreachable(error)
    version = daemon.api.api_version
    probes = [
        _address(daemon),
        Probe(
            "daemon",
            tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_API,
            f"docker {info.get('ServerVersion')}, API {version}",
            f"needs API {'.'.join(map(str, OLDEST_API))} or newer: update docker",
        ),
        _system(info),
        _runtime(info, config.runtime),
        await _image(daemon, config.image),
    ]
    bash = False
    if all(found.ok for found in probes):
        trial, bash = await _trial(daemon, config)
        probes.append(trial)
    probes.append(_memory(info))
    works = all(found.ok for found in probes if found.required)
    capabilities = Capabilities(
        network_isolated=works,
        process_isolated=works,
        total_memory=works and bool(info.get("MemoryLimit")),
        disk=works,
        exec=works,
        sessions=frozenset(["python", *(["shell"] if bash else [])] if works else ()),
        fork_snapshot=works,
        images=works,
    )
    return ProbeReport("docker", probes, capabilities)


def _address(daemon: Daemon) -> Probe:
    """Check the address: the attached stream is read raw, so TLS and ssh are not supported."""
    url = daemon.api.base_url
    ok = url.startswith(("http+docker://", "http://"))
    fix = (
        "use a unix:// or tcp:// address; a far one through "
        "ssh -L /tmp/docker.sock:/var/run/docker.sock"
    )
    return Probe("address", ok and "ssh" not in url, url, fix)


def _system(info: Mapping[str, Any]) -> Probe:
    kind, machine = info.get("OSType"), info.get("Architecture")
    guarded = any("seccomp" in each for each in info.get("SecurityOptions") or ())
    return Probe(
        "system",
        kind == "linux" and machine in seccomp.ARCHITECTURES and guarded,
        f"{kind} on {machine}, system-call filters: {'yes' if guarded else 'no'}",
        f"needs Linux on {' or '.join(seccomp.ARCHITECTURES)}, with seccomp",
    )


def _runtime(info: Mapping[str, Any], wanted: str) -> Probe:
    known = sorted(info.get("Runtimes") or ())
    return Probe(
        "runtime",
        not wanted or wanted in known,
        wanted or f"{info.get('DefaultRuntime')}, the daemon's own",
        f"the daemon has {', '.join(known)}; register {wanted!r} in its daemon.json "
        "(gVisor: apt-get install runsc)",
    )


def _memory(info: Mapping[str, Any]) -> Probe:
    return Probe(
        "memory limit",
        bool(info.get("MemoryLimit")),
        f"cgroup version {info.get('CgroupVersion', '1')}",
        "memory is bounded for each process only; enable the memory cgroup controller",
        required=False,
    )


async def _image(daemon: Daemon, image: str) -> Probe:
    fix = f"docker pull {image}"
    if image == DEFAULT_IMAGE:
        fix = (
            "python scripts/sandbox_image.py makes it from this machine's Python, without a "
            "registry; or set image to one of yours with Python in it (python:3.12-slim)"
        )
    try:
        about = await daemon.call(daemon.api.inspect_image, image)
    except SandboxError as error:
        return Probe("image", False, f"{image}: {error}", fix)
    return Probe("image", True, f"{image} ({about['Id'].removeprefix('sha256:')[:12]})", fix)


async def _trial(daemon: Daemon, config: ContainerConfig) -> tuple[Probe, bool]:
    """Try a complete container; return the probe, and True if it has bash."""
    fix = f"the image needs {config.python} (3.8 or newer, with ctypes); see the option `python`"
    if not config.user:
        fix += "; does the daemon map users (rootless, userns-remap)? Then set user=1000"
    code = b64encode(b"import json, sys; print(json.dumps(sys.version_info[:3]))").decode()
    limits = {"wall_s": 20, "cpu_s": 20, "memory_mb": 256, "file_mb": 4, "open_files": 64}
    limits["output_bytes"] = 10_000
    try:
        container = await start(daemon, config, _LIMITS)
        try:
            reply = await container.client.request(
                "run_python", code=code, limits=limits, deadline_s=30
            )
            shell = await container.client.request(
                "exec", argv=["bash", "-c", "exit 7"], limits=limits, deadline_s=30
            )
        finally:
            container.client.link.drop("closed")
            await remove(daemon, container.id)
    except (SandboxError, RunnerError) as error:
        return Probe("container", False, str(error), fix), False
    detail = json.dumps({name: reply[name] for name in ("status", "exit_code", "cpu_ms")})
    return Probe("container", reply["status"] == "ok", detail, fix), shell["exit_code"] == 7
