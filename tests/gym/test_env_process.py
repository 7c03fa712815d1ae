"""Environments in processes of their own: hangs and crashes are named errors, nothing is left."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from agentgym_rl import Step, SyncEnv, make
from agentgym_rl.core import ConfigError, EnvError, InfraError
from agentgym_rl.gym import to_async
from tests.kit.cases import cases

ENV = f"{__name__}:Odd"


class Refusal(InfraError):
    """An error that pickle can write, and not read."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


class Odd(SyncEnv):
    """Does what the action says."""

    executor = "process"

    def __init__(self, start=""):
        if start and os.environ.get("ODD_HOST") != str(os.getpid()):
            DEEDS[start]()

    def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "?"}], {"pid": os.getpid()}

    def step(self, action):
        done = DEEDS[action["content"]]()
        return Step([], 1.0, False, False, {"pid": os.getpid(), "done": done})

    def solve(self):
        return [{"role": "assistant", "content": str(os.getpid())}]


def _raise(error):
    raise error


def _hang():
    while True:
        pass


DEEDS = {
    "nothing": lambda: None,
    "print": lambda: print("printed"),
    "raise": lambda: _raise(ValueError("boom")),
    "infra": lambda: _raise(InfraError("no disk")),
    "odd error": lambda: _raise(Refusal("no", "disk")),
    "system exit": lambda: sys.exit(3),
    "exit": lambda: os._exit(3),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": _hang,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "function": lambda: lambda: 0,
    "much": lambda: "x" * (65 << 20),
    "child": lambda: subprocess.Popen(["sleep", "600"]).pid,
}


def say(text):
    return {"role": "assistant", "content": text}


def gone(pid: int) -> bool:
    """Whether a process has ended, within a time that only a failure takes."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


async def played(deed: str, limit_s: float = 60):
    """The outcome of an action, after which another episode can be played."""
    env = make(ENV, step_timeout_s=60)
    pid = (await env.reset(seed=1))[1]["pid"]
    try:
        try:
            async with asyncio.timeout(limit_s):
                found = await env.step(say(deed))
        except Exception as error:
            found = error
        await env.reset(seed=1)
        assert (await env.step(say("nothing"))).reward == 1.0
    finally:
        await env.close()
    assert gone(pid)
    return found


@pytest.mark.slow
@cases(
    "deed, said",
    {
        "raise": "ValueError: boom",
        "odd error": r"no disk \(.*, in _raise\)",
        "system exit": "SystemExit: 3",
        "exit": r"step of .*:Odd: its process \(pid \d+\) ended \(exit code 3\)",
        "crash": r"ended \(signal 11, SIGSEGV\)",
        "killed": r"ended \(signal 9, SIGKILL\)",
        "function": "its result cannot leave the process",
        "much": r"its result cannot leave the process: \d+ bytes, at most 67108864",
    }.items(),
)
def test_a_failure_is_the_environments_and_named(deed, said):
    error = asyncio.run(played(deed))
    assert type(error) is EnvError
    with pytest.raises(EnvError, match=said):
        raise error


@cases("deed", ["hang", "stop"])
@pytest.mark.slow
def test_a_step_that_is_cancelled_ends_its_process(deed):
    assert isinstance(asyncio.run(played(deed, limit_s=0.3)), TimeoutError)


def test_an_error_of_ours_keeps_its_kind():
    error = asyncio.run(played("infra"))
    assert (type(error), str(error)) == (InfraError, "no disk")


def test_episodes_of_one_environment_share_a_process():
    async def pids() -> set[int]:
        env = make(ENV)
        found = {(await env.reset(seed=seed))[1]["pid"] for seed in range(3)}
        found |= {int(env.solve()[0]["content"])}
        await env.close()
        return found

    assert len(asyncio.run(pids()) | {os.getpid()}) == 2


def test_a_print_is_no_answer(capfd):
    assert asyncio.run(played("print")).reward == 1.0
    assert capfd.readouterr() == ("", "printed\n")


def test_children_of_the_environment_end_with_it():
    step = asyncio.run(played("child"))
    assert gone(step.info["done"])


def test_it_ends_with_its_parent():
    program = f"""
        import asyncio
        from agentgym_rl import make

        async def play():
            env = make({ENV!r}, step_timeout_s=600)
            print((await env.reset(seed=1))[1]["pid"], flush=True)
            await env.step({{"role": "assistant", "content": "hang"}})

        asyncio.run(play())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
    ) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
        assert gone(pid)


def test_an_episode_that_nobody_closed_ends_with_its_environment():
    async def forget() -> int:
        return (await make(ENV).reset(seed=1))[1]["pid"]

    assert gone(asyncio.run(forget()))


@cases("start, said", {"exit": "start of .* ended .exit code 3.", "raise": "boom"}.items())
def test_a_constructor_that_fails_there_is_named(start, said, monkeypatch):
    monkeypatch.setenv("ODD_HOST", str(os.getpid()))
    with pytest.raises(EnvError, match=said):
        asyncio.run(make(ENV, start=start).reset(seed=1))


def test_reset_options_that_pickle_refuses_are_named():
    with pytest.raises(EnvError, match="gets its arguments by pickle, which these refuse"):
        asyncio.run(make(ENV).reset(options={"task": lambda: 0}))


def test_a_step_without_a_process_is_refused():
    with pytest.raises(EnvError, match="call reset first"):
        asyncio.run(make(ENV).unwrapped.step(say("nothing")))


class Judged(Odd):
    uses_verifier = True


class Holding(Odd):
    needs_sandboxes = True


@cases("kind", [Judged, Holding])
def test_services_do_not_reach_a_process(kind):
    with pytest.raises(ConfigError, match="can use neither sandboxes nor the verifier pool"):
        make(f"{__name__}:{kind.__name__}")


def test_a_class_that_no_other_process_can_import_is_refused():
    class Local(Odd):
        """A class of this function."""

    with pytest.raises(ConfigError, match="needs a class of a module and arguments that can be"):
        to_async(Local())
