"""The host's side of a slot: one namespaced process that makes children, and what they say."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentgym_rl.core.errors import SandboxError, SandboxLost, SandboxUnavailable
from agentgym_rl.runtime.frozen import Vital

from .cgroup import Cgroup
from .child import Child, Ended
from .inside import wire
from .processes import LoneEnd, descends, kill_process_1

ZYGOTE = Path(__file__).parent / "inside" / "zygote.py"
LONE = ZYGOTE.with_name("lone.py")
"""Where there are no namespaces (isolation "landlock")."""
KILL_GRACE_S = 5.0
"""Longest wait for a slot to end a program; then the slot itself is killed."""
START_TIMEOUT_S = 30.0
MAX_REPLACED = 8
"""Waiting processes that may be killed, from one fresh work folder to the next."""
HOST_UID = 200_000
"""Where the machine's root runs this: the uid of slot 0, of slot 1 the next one, and so on."""


@dataclass(frozen=True)
class SlotConfig:
    """What every slot of a backend is started with."""

    python: str
    read_only: Sequence[tuple[str, str]]
    """(folder of the machine, where programs see it)."""
    hidden: Sequence[str]
    """Of those folders: what programs do not see, by its real path."""
    path: Sequence[str]
    """Added to `sys.path`."""
    preimport: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the zygote while it starts: nothing of it reaches a program."""
    isolation: str = "namespaces"

    def command(self) -> list[str]:
        """What the slot's first process is."""
        script = LONE if self.isolation == "landlock" else ZYGOTE
        return [self.python, "-I", "-S", "-B", "-X", "utf8", str(script)]


class Slot:
    """Started by `start`; one sandbox at a time uses it."""

    def __init__(
        self,
        index: int,
        config: SlotConfig,
        cgroup: Cgroup | None,
        *,
        on_death: Callable[[Slot], None] = lambda slot: None,
    ) -> None:
        self.index = index
        self.executions = 0
        self.box = -1
        """Handle of the work folder, once a child waits; else -1."""
        self.child: Child | None = None
        """The one that waits."""
        self.dead = ""
        """Why it is of no use any more."""
        self.frozen = False
        """Somebody had stopped it: what its programs did not do in time is not their doing."""
        self.disk_mb = 0
        """Size of the work folder."""
        self._config = config
        self._cgroup = cgroup
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, Child] = {}
        self._kills: dict[int, asyncio.TimerHandle] = {}
        """Child -> when the slot goes too, if killing the child does not help."""
        self._awaited: asyncio.Future[None] | None = None
        """Done once a child waits (or, before that, once the slot has started)."""
        self._soon: asyncio.Handle | None = None
        """Will prepare one more child, if nobody wants a fresh work folder instead."""
        self._fresh = 0
        """Work folders asked for that have not come; children that come first are old ones."""
        self._life = 0
        """Counts work folders."""
        self._replaced = 0
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._vital: Vital | None = None
        """Of what is ours in it; programs may stop themselves."""
        self._lone_end: LoneEnd | None = None
        self._control: socket.socket | None = None

    # ------------------------------------------------------------------ life
    async def start(self) -> None:
        """Start the process and wait until it is in its namespaces.

        Raises:
            SandboxUnavailable: the kernel refused something.
            SandboxLost: it died.
            OSError: no process or handle was to be had.
        """
        try:
            self._spawn()
            if self._cgroup is not None:
                assert self._process is not None
                await asyncio.to_thread(self._cgroup.add, self._process.pid)
            config = {
                "host_uid": HOST_UID + self.index,
                "read_only": self._config.read_only,
                "hidden": self._config.hidden,
                "path": self._config.path,
                "preimport": self._config.preimport,
                "tmp": tempfile.gettempdir(),
            }
            if self._control is None:
                raise SandboxLost(self.dead)
            self._control.send(json.dumps(config).encode())
            await self._wait("start")
        except BaseException as error:
            self.close(f"it did not start: {str(error) or type(error).__name__}")
            raise

    def _spawn(self) -> None:
        # Not in a thread: the process is to die with the thread that started it.
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = mine
        mine.setblocking(False)
        script = [*self._config.command(), str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                script,
                pass_fds=[theirs.fileno()],
                # Symbols are looked up once, in memory that all children share.
                env={"PATH": "/usr/bin:/bin", "LD_BIND_NOW": "1", **self._config.environment},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        # In namespaces: the process outside, and process 1.
        self._vital = Vital(self._process.pid, depth=0 if self._is_lone else 1)
        self._loop.add_reader(mine, self._read)

    @property
    def _is_lone(self) -> bool:
        return self._config.isolation == "landlock"

    def look(self) -> None:
        """Close it if it is frozen by now; to be called again and again."""
        if not self._closed and self._vital is not None and (pid := self._vital.frozen()):
            self._close_frozen(pid)

    def look_now(self) -> None:
        """Close it if it is stopped at this moment, as something took too long."""
        if not self._closed and self._vital is not None and (pid := self._vital.stopped()):
            self._close_frozen(pid)

    def _close_frozen(self, pid: int) -> None:
        self.frozen = True
        self.close(f"it is frozen: somebody has stopped its process {pid} (SIGSTOP)")

    @property
    def was_ready(self) -> bool:
        """Whether it has ever had a work folder."""
        return self._life > 0

    def close(self, why: str = "closed") -> None:
        """Kill everything in it; `gone` says when that has happened. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.dead = self.dead or why
        if self._cgroup is not None:
            self._cgroup.oom_kills()  # while it can be asked
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._process is not None and self.frozen:
            self._process.send_signal(signal.SIGCONT)  # or it would never end
        if self._process is not None and self._is_lone:
            # It ends its children, and what they left, as nobody listens any more.
            sweep = [*self._config.command(), "sweep", tempfile.gettempdir()]
            self._lone_end = LoneEnd(self._process, sweep)
        elif self._process is not None:
            kill_process_1(self._process.pid)
        self._forget(SandboxLost(self.dead))
        self._on_death(self)

    def gone(self) -> bool:
        """Whether nothing is left of a slot that was closed."""
        if not self._closed:
            return False
        if self._lone_end is not None and not self._lone_end.over():
            return False
        if self._process is not None and self._process.poll() is None:
            return False
        return self._cgroup is None or self._cgroup.remove()

    def holds(self, pid: int) -> bool:
        """Whether the process is one of this slot's: a descendant of its first."""
        return self._process is not None and descends(pid, self._process.pid)

    # ------------------------------------------------------------------ for a sandbox
    def fresh(self, disk_mb: int, why: str = "the sandbox was closed") -> None:
        """End everything in it and give it an empty work folder; `ready` waits for that."""
        self._forget(SandboxLost(why))
        self.disk_mb = disk_mb
        self._replaced = 0
        self._life += 1
        self._fresh += 1
        self._command(wire.FRESH, disk_mb)

    def limited(self, *, memory_mb: int, processes: int) -> bool:
        """Whether `limit` would change nothing."""
        return self._cgroup is None or self._cgroup.limited(
            memory_mb=memory_mb, processes=processes
        )

    def limit(self, *, memory_mb: int, processes: int) -> None:
        """Of all its processes together, where there is a cgroup.

        Raises:
            OSError: the kernel refused.
        """
        if self._cgroup is not None:
            self._cgroup.limit(memory_mb=memory_mb, processes=processes)

    def oom_kills(self) -> int:
        """Processes the kernel has killed for memory, so far; 0 where there is no cgroup."""
        return self._cgroup.oom_kills() if self._cgroup is not None else 0

    async def ready(self) -> Child:
        """The child that waits, which is the caller's from now on.

        Raises:
            SandboxLost: the slot died, or was given an other work folder meanwhile.
        """
        await self.prepared()
        child, self.child = self.child, None
        assert child is not None
        return child

    async def prepared(self) -> None:
        """Wait until there is a child that waits.

        Raises:
            SandboxLost: as `ready`.
        """
        if self.child is not None:
            return
        if self._control is None:
            raise SandboxLost(self.dead)
        if self._soon is not None:
            self._another()
        await self._wait("prepare a process")
        if self.child is None:
            raise SandboxLost(self.dead or "the sandbox was closed")

    def release(self, child: Child) -> None:
        """Whoever took it from `ready` is done with it: kill it if it still runs; prepare another.

        But not if `fresh` is called in this turn of the event loop: most sandboxes are closed as
        soon as their only program has ended.
        """
        if not child.ended.done():
            child.ended.cancel()
        if child.ended.cancelled():
            self.kill(child)  # `_done` releases it then
            return
        child.close()
        self.prepare(child)

    def prepare(self, after: Child) -> None:
        """One more child, soon, as `after` is used up."""
        if after.life == self._life and self._soon is None and self._control is not None:
            self._soon = self._loop.call_soon(self._another)

    def lasting(self, child: Child) -> None:
        """`child` is to be a session."""
        self._command(wire.LASTING, child.number)

    def kill(self, child: Child) -> None:
        """Kill its program, and the slot with it where that does not help."""
        if child.number not in self._children or child.number in self._kills:
            return
        self._kills[child.number] = self._loop.call_later(KILL_GRACE_S, self._unkillable)
        self._command(wire.KILL, child.number)

    def _unkillable(self) -> None:
        self.look_now()
        self.close(f"a program could not be killed within {KILL_GRACE_S:g} s")

    def interrupt(self, child: Child) -> None:
        self._command(wire.INTERRUPT, child.number)

    # ------------------------------------------------------------------ inside
    def _another(self) -> None:
        self._not_soon()
        self._command(wire.ANOTHER, 0)

    def _not_soon(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def _forget(self, error: SandboxError) -> None:
        """All children and the work folder: whoever waits for one gets `error`."""
        self._not_soon()
        for timer in self._kills.values():
            timer.cancel()
        self._kills.clear()
        for child in self._children.values():
            child.fail(error)
        self._children.clear()
        self.child = None
        if self.box >= 0:
            os.close(self.box)
            self.box = -1
        self._tell(error)

    async def _wait(self, what: str) -> None:
        """For `_tell`, or an error."""
        assert self._awaited is None, "two wait for one slot"
        why = f"the slot did not {what} within {START_TIMEOUT_S:g} s"
        alarm = self._loop.call_later(START_TIMEOUT_S, self.close, why)
        awaited = self._awaited = self._loop.create_future()
        try:
            await awaited
        finally:
            alarm.cancel()
            if self._awaited is awaited:
                self._awaited = None

    def _tell(self, error: SandboxError | None = None) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is None or awaited.done():
            return
        if error is None:
            awaited.set_result(None)
        else:
            awaited.set_exception(error)

    def _command(self, command: bytes, number: int) -> None:
        if self._control is None:
            return
        try:
            self._control.send(wire.COMMAND.pack(command, number))
        except OSError as error:
            self.close(f"the slot does not listen: {error}")

    def _read(self) -> None:
        assert self._control is not None
        try:
            message, handles, flags, _ = socket.recv_fds(
                self._control, 8192, 2, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"the slot's socket failed: {error}")
            return
        kind, body = message[:1], message[1:]
        if not message:
            self.close("the slot's process died")
        elif flags & socket.MSG_CTRUNC:
            for handle in handles:
                os.close(handle)
            self.close("this process has no file handles left; raise `ulimit -n`")
        elif kind == wire.CHILD:
            self._add(wire.NUMBER.unpack(body)[0], handles)
        elif kind == wire.DONE:
            number, *ended = wire.DONE_BODY.unpack(body)
            self._done(number, Ended(*ended))
        elif kind == wire.READY:
            self._tell()
        elif kind == wire.FAILED:
            self.dead = body[4:].decode("utf-8", "replace")
            number = struct.unpack("i", body[:4])[0]
            text = f"{self.dead} (errno {number})" if number else self.dead
            self._tell(SandboxUnavailable(f"the slot could not start: {text}"))

    def _add(self, number: int, handles: list[int]) -> None:
        if len(handles) > 1:
            self._fresh -= 1
        if self._fresh:  # of a work folder that is no more
            for handle in handles:
                os.close(handle)
            return
        if len(handles) > 1:
            self.box = handles[1]
        self.child = self._children[number] = Child(
            number, socket.socket(fileno=handles[0]), self._life
        )
        self._tell()

    def _done(self, number: int, ended: Ended) -> None:
        child = self._children.pop(number, None)
        if child is None:
            return
        if timer := self._kills.pop(number, None):
            timer.cancel()
        child.finish(ended)
        if child is self.child:
            self._replace_waiting(child)
        elif child.ended.cancelled():  # whoever ran it has left; the sandbox goes on
            child.close()
            self.prepare(child)

    def _replace_waiting(self, child: Child) -> None:
        """The one that waits has ended: a session may kill it, but not for ever."""
        self.child = None
        complaint = child.complaint()
        child.close()
        self._replaced += 1
        if complaint or self._replaced > MAX_REPLACED:
            self.close(f"a waiting process ended: {complaint or 'killed again and again'}")
        else:
            self.prepare(child)
