"""A program inside of its environment's sandbox, with the files of the task.

It uses its own tools there, and reaches one address: the model, with the key of its episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from agentgym_rl import AgentError, Sandbox
from agentgym_rl.gym import ExecResult
from agentgym_rl.gym.sandbox_records import Status

from .presets import Launch, Preset, command_line, launch_of
from .program import MAX_BYTES, TAIL_CHARS

PORT = 8421
"""The port in the sandbox at which the model answers."""
FOLDER = "/tmp/agent"
"""The program's folder in the sandbox: its home, the task, and the file for its final message."""
MOUNT = "/opt/agents"
"""The folder of agent programs in the sandbox (`folder.py`); PATH begins with its `bin`."""
_SHOWN = f"python -m arl_agents.command.folder, and the sandbox option mounts for {MOUNT}"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The search path of an image that sets none."""
STOPPED = (Status.TIMEOUT, Status.CPU_LIMIT, Status.OUTPUT_LIMIT)
"""The ends by a limit of the episode, after which the task's files are graded as they are."""


async def run_inside(
    sandbox: Sandbox,
    argv: Sequence[str],
    preset: Preset | None,
    env: Mapping[str, str],
    *,
    task_file: bytes,
    prompt: str,
) -> str:
    """Run a program in the sandbox until it ends; return its final message.

    Args:
        env: The environment variables of the episode, whose files are in FOLDER, and those of the
            user.
        task_file: The contents of the file that ARL_TASK_FILE names.

    Raises:
        AgentError: the program failed, or is not in the sandbox.
        SandboxError: the sandbox failed.
    """
    url = urlsplit(env["OPENAI_BASE_URL"])
    port = url.port or (443 if url.scheme == "https" else 80)
    here = f"http://127.0.0.1:{PORT}"
    home = f"{FOLDER}/home"
    image = sandbox.image
    path = (image.env.get("PATH") if image is not None else None) or PATH
    env = {
        "PATH": f"{MOUNT}/bin:{path}",
        **env,
        "OPENAI_BASE_URL": f"{here}{url.path}",
        "ANTHROPIC_BASE_URL": f"{here}{url.path.removesuffix('/v1')}",
    }
    launch = Launch()
    if preset:
        launch = launch_of(preset, env, home=home, own_tools=True, confined=True)
    words, reads_prompt = command_line(launch, argv, prompt)
    files = {f"{home}/{name}": text.encode() for name, text in launch.files.items()}
    async with sandbox.forward(PORT, f"{url.hostname}:{port}"):
        await sandbox.write_files({**files, env["ARL_TASK_FILE"]: task_file})
        result = await sandbox.exec(
            words,
            stdin=prompt.encode() if reads_prompt else b"",
            env={"HOME": home, **env, **launch.env},
        )
    if result.status in STOPPED:
        return f"(the program was stopped: {result.status.value})"
    if not result.ok:
        raise AgentError(_failure(words[0], result, preset))
    return await _answer(sandbox, result, launch, env["ARL_ANSWER_FILE"])


async def _answer(sandbox: Sandbox, result: ExecResult, launch: Launch, answer_file: str) -> str:
    """Return the final message: the answer file if it exists, else the output as the preset reads
    it."""
    try:
        found = await sandbox.read_file(answer_file, max_bytes=MAX_BYTES)
        return found.decode(errors="replace").strip()
    except OSError:
        text = result.stdout_text
    if launch.answer_file:
        try:
            found = await sandbox.read_file(launch.answer_file, max_bytes=64 * MAX_BYTES)
        except OSError:
            return ""
        text = found.decode(errors="replace")
    return (launch.answer(text) if launch.answer else text).strip()


def _failure(program: str, result: ExecResult, preset: Preset | None) -> str:
    errors = result.stderr_text[-TAIL_CHARS:].strip() or "nothing on standard error"
    if result.exit_code == 127:
        remedy = f"; to install it: {preset.install} in the image, or {_SHOWN}" if preset else ""
        return f"there is no program {program!r} in the sandbox{remedy}; it said: {errors}"
    how = f"exit code {result.exit_code}" if result.signal is None else f"signal {result.signal}"
    return f"the program ended with {how} ({result.status.value}); it said: {errors}"
