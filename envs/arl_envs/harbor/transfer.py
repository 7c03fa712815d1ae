"""The transfer of the agent's changes into a fresh sandbox of the image; and of its files
elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentgym_rl import Sandbox, SandboxError
from agentgym_rl.gym.sandbox_records import Status

from .changes import Changes, depth

_CLEAR = """
import json, os, shutil, sys
plan = json.load(sys.stdin)
for path, mode in plan["closed"]:
    os.chmod(path, mode | 0o700)
for path in plan["removed"]:
    if os.path.islink(path) or not os.path.isdir(path):
        if os.path.lexists(path):
            os.remove(path)
    else:
        shutil.rmtree(path)
"""
_MAKE_ROOM = """
import json, os, shutil, sys
paths = json.load(sys.stdin)
folders, left = set(), {os.path.dirname(path) for path in paths}
while left - {"/"}:
    folders |= left - {"/"}
    left = {os.path.dirname(folder) for folder in left} - folders
for folder in sorted(folders):
    if os.path.isdir(folder):
        if not os.access(folder, os.W_OK | os.X_OK):
            os.chmod(folder, os.stat(folder).st_mode & 0o777 | 0o700)
    elif os.path.lexists(folder):
        os.remove(folder)
for path in paths:
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        for top, inner, _ in os.walk(path):
            for name in inner:
                if not os.path.islink(os.path.join(top, name)):
                    os.chmod(os.path.join(top, name), 0o700)
        shutil.rmtree(path)
"""
_SHAPE = """
import json, os, sys
plan = json.load(sys.stdin)
for path in plan["gone"]:
    try:
        os.rmdir(path)
    except OSError:
        pass
for path in plan["folders"]:
    os.makedirs(path, exist_ok=True)
for path, target in plan["links"]:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    os.symlink(target, path)
for path, mode in plan["modes"]:
    if not os.path.islink(path) and os.path.exists(path):
        os.chmod(path, mode)
"""


async def apply(sandbox: Sandbox, changes: Changes) -> None:
    """Make the changes in a fresh sandbox of the image.

    Raises:
        SandboxError: the sandbox failed, or has no room for the files.
    """
    if changes.empty:
        return
    if changes.removed or changes.closed:
        await _run(sandbox, _CLEAR, {"closed": changes.closed, "removed": changes.removed})
    if changes.written:
        await sandbox.write_files(changes.written)
    if changes.shape or changes.closed:
        modes = dict(changes.closed) | dict(changes.modes)
        plan = {
            "gone": changes.gone,
            "folders": changes.folders,
            "links": changes.links,
            "modes": sorted(modes.items(), key=depth, reverse=True),
        }
        await _run(sandbox, _SHAPE, plan)


async def put(sandbox: Sandbox, files: Mapping[str, bytes]) -> None:
    """Write files with absolute paths, and replace what the image has there.

    Raises:
        SandboxError: the sandbox failed, or has no room for the files.
    """
    if files:
        await _run(sandbox, _MAKE_ROOM, sorted(files))
        await sandbox.write_files(files)


async def _run(sandbox: Sandbox, code: str, given: Any) -> None:
    result = await sandbox.run_python(code, stdin=json.dumps(given).encode())
    if result.status is not Status.OK:
        raise SandboxError(
            f"{sandbox.id}: the agent's files could not be put in: {result.status.value}, "
            f"{result.stderr_text[-300:]}"
        )
