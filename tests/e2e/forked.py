"""`arl`, or another module, forked from one process that has made the imports of the controller and
of its children.

Each gets a fork server of its own, as `arl` starts one where nobody gives it one: that alone, and
the imports, are left out.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from select import select
from typing import IO, Any

import pytest

from agentgym_rl.cluster import Forks, ForkServer, LocalProcesses
from agentgym_rl.cluster.fork_server import MESSAGE_BYTES, Request
from agentgym_rl.config import Config, TrainerConfig
from agentgym_rl.engines import kind_of
from agentgym_rl.trainer import rank_environment, rank_imports

CONTROLLER = ("agentgym_rl.run.train", "agentgym_rl.evaluate.command", "agentgym_rl.report.run")
TOKENS_AND_TYPES = ("openai", "openai.types.chat", "matplotlib.figure", "arl_envs.math")
IMPORT_TIMEOUT_S = 240.0


class _Server:
    def __init__(self) -> None:
        config = Config()
        modules = (
            *rank_imports(config.trainer),
            *kind_of(config.own_engine).fork_imports(config.own_engine),
            *CONTROLLER,
            *TOKENS_AND_TYPES,
        )
        self._server = ForkServer(modules, environment=rank_environment(config.trainer))
        self._server.__enter__()
        atexit.register(self._server.__exit__)
        self._ids = self._server.ids
        self.said: dict[int, dict] = {}
        """What is known of each request."""

    def ask(
        self,
        module: str,
        arguments: list[str],
        environment: dict[str, str],
        folder: Path,
        files: list[int],
    ) -> int:
        """Returns the request's id, once its process runs."""
        path = [*environment.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
        request = Request(
            id=next(self._ids),
            module=module,
            arguments=arguments,
            environment={**rank_environment(TrainerConfig()), **environment},
            folder=str(folder),
            path=[folder for folder in path if folder],
            nested=True,
        )
        self.said[request.id] = {}
        socket.send_fds(self._server.socket, [request.pack()], files)
        end = time.monotonic() + IMPORT_TIMEOUT_S
        while not self.said[request.id] and time.monotonic() < end:
            self.listen(1.0)
        assert "pid" in self.said[request.id], (self.said[request.id], self._server.output)
        return request.id

    def listen(self, timeout_s: float) -> None:
        """Take note of what the server says within the time, if anything."""
        if select([self._server.socket], [], [], max(0.0, timeout_s))[0]:
            message = self._server.socket.recv(MESSAGE_BYTES)
            assert message, f"the fork server has ended: {self._server.output}"
            reply = json.loads(message)
            self.said.setdefault(reply["id"], {}).update(reply)

    def shared(self) -> ForkServer:
        while select([self._server.socket], [], [], 0)[0]:
            self.listen(0)
        return self._server


@cache
def _server() -> _Server:
    return _Server()


def shared_fork_server() -> ForkServer:
    """The fork server of the tests of this process, for a run in it, which hears nothing of earlier
    forks."""
    return _server().shared()


@contextmanager
def _shared(modules: Sequence[str], *, environment: Mapping[str, str]) -> Iterator[ForkServer]:
    yield shared_fork_server()


class _SharedProcesses(LocalProcesses):
    """Children that are forked, although nobody starts a fork server for so few."""

    async def __aenter__(self) -> LocalProcesses:
        self._stack = AsyncExitStack()
        if self.forks is None:
            self.forks = await self._stack.enter_async_context(Forks(shared_fork_server()))
        return await super().__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        await self._stack.aclose()


def share_fork_server(patch: pytest.MonkeyPatch) -> None:
    """Let runs in this process fork their children from the fork server of its tests."""
    patch.setattr(import_module("agentgym_rl.run.launch"), "ForkServer", _shared)
    for module in ("agentgym_rl.fleet.fleet", "agentgym_rl.evaluate.command"):
        patch.setattr(import_module(module), "LocalProcesses", _SharedProcesses)


class Forked:
    """`python -m module arguments`, running; the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        env: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        environment = dict(os.environ) if env is None else env
        self._text: tuple[str, str] | None = None
        self._output = [tempfile.TemporaryFile() for _ in ("stdout", "stderr")]  # noqa: SIM115
        files = [file.fileno() for file in self._output]
        where = folder or Path.cwd()
        self._id = _server().ask(module, list(arguments), environment, where, files)
        self.pid: int = self._said["pid"]
        self._read = 0
        """Bytes of stdout that `readline` has returned."""

    def readline(self, timeout: float = 120) -> str:
        """The next line of stdout; what there is of it where the process ends before."""
        end = time.monotonic() + timeout
        while True:
            ended = self.poll() is not None
            text = os.pread(self._output[0].fileno(), 1 << 16, self._read)
            line, newline, _ = text.partition(b"\n")
            if newline or ended:
                self._read += len(line + newline)
                return (line + newline).decode()
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            _server().listen(0.01)

    def wait(self, timeout: float) -> int:
        """Its exit code, once it has ended; -N: signal N."""
        end = time.monotonic() + timeout
        while self.returncode is None:
            left = end - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            _server().listen(left)
        return self.returncode

    @property
    def _said(self) -> dict:
        return _server().said[self._id]

    @property
    def returncode(self) -> int | None:
        return self._said.get("code")

    def poll(self) -> int | None:
        _server().listen(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)

    def errors(self) -> str:
        """The text on stderr up to now; asked for while the process runs."""
        return os.pread(self._output[1].fileno(), 1 << 20, 0).decode()

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.wait(timeout)
        if self._text is None:
            out, err = (_all(file) for file in self._output)
            self._text = out, err
        return self._text


def _all(output: IO[bytes]) -> str:
    with output:
        output.seek(0)
        return output.read().decode()


class ForkedArl(Forked):
    """`arl` with these arguments, running."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        super().__init__("agentgym_rl", *arguments, env=env)


def run(
    module: str,
    *arguments: str | Path,
    env: dict[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module arguments` in `folder` to its end."""
    words = list(map(str, arguments))
    process = Forked(module, *words, env=env, folder=folder)
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode is not None
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def run_all(script: Path, *arguments: Sequence[object]) -> None:
    """Run a script, once with each of these arguments, all at the same time."""
    path = os.pathsep.join([str(script.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    running = [Forked(script.stem, *map(str, words), env=env) for words in arguments]
    try:
        for process in running:
            _, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
    finally:
        for process in running:
            process.kill()


def arl(
    *arguments: str | Path, env: dict[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `arl` in `folder` to its end."""
    return run("agentgym_rl", *arguments, env=env, folder=folder)
