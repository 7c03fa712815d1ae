"""Without its SDK a sandbox is listed, and says what to install when it is to be made."""

import subprocess
import sys

import pytest

from agentgym_rl.core import install_command

CODE = """
import sys
sys.modules["docker"] = sys.modules["e2b"] = None  # as if they were not installed
from agentgym_rl.core.errors import SandboxUnavailable
from agentgym_rl.gym.registry import listing, make_sandbox
print(*[row.spec.description for row in listing("sandbox") if row.id == "{name}"])
try: make_sandbox("{name}")
except SandboxUnavailable as error: print(error)
"""


@pytest.mark.parametrize("name", ["docker", "e2b"])
def test_it_is_listed_and_not_made(name):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE.format(name=name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    description, complaint = done.stdout.splitlines()
    assert description.endswith(".")
    assert complaint.endswith(f"not installed: {install_command(name)}")
