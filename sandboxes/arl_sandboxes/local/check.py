"""A program that searches for gaps in its own isolation, for the probes."""

from __future__ import annotations

from agentgym_rl.gym import Limits

from .child import Child
from .run import Order, Run
from .slot import Slot

CHECK = """
import colorsys, os, signal, socket, sqlite3, tempfile
def opens(path): os.close(os.open(path, os.O_RDONLY))
ATTEMPTS = {
    "read /etc/passwd": lambda: opens("/etc/passwd"),
    "list /proc": lambda: opens("/proc"),
    "list the folder of temporary files": lambda: opens("../.."),
    "make a socket": lambda: socket.socket(),
    "fork": os.fork,
    "signal its parent": lambda: os.kill(os.getppid(), 0),
    "change the mode of a file": lambda: os.chmod(tempfile.mkstemp()[1], 0o600),
}
for name, attempt in ATTEMPTS.items():
    try: attempt()
    except OSError: continue
    print("it can", name)
"""


async def checked(slot: Slot, child: Child) -> str:
    """Run the check in the slot; return a description of the gaps or faults, "" if none.

    Raises:
        SandboxError: it did not run.
    """
    limits = Limits()
    order, payload = Order("python", code=CHECK.encode()).packed(limits)
    try:
        result = await Run(slot, child, limits, sandbox_id="probe").play(order, payload, b"")
    finally:
        child.close()
    if result.ok:
        return result.stdout_text.strip().replace("\n", "; ")
    return f"a program ended with {result.status}: {result.stderr_text[-300:]}"
