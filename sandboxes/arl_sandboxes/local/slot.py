"""The host's side of a slot: one namespaced process that makes children, and its messages."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from agentgym_rl import SandboxError, SandboxLost, SandboxUnavailable
from agentgym_rl.gym import Limits
from agentgym_rl.runtime import Vital

from .cgroup import Cgroup
from .child import Child, Ended
from .inside import wire
from .interpreter import SlotConfig
from .processes import LandlockEnd, descends, kill_process_1

KILL_GRACE_S = 5.0
"""The longest wait for a slot to end a program; then the slot itself is killed."""
START_TIMEOUT_S = 30.0
MAX_REPLACED = 8
"""The number of waiting processes that may be killed between two fresh work folders."""
HOST_UID = 200_000
"""The uid of slot 0, if root runs this; slot 1 has the next uid, and so on."""


class Slot:
    """A slot, started by `start`; one sandbox at a time uses it."""

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
        """The descriptor of the work folder, once a child waits; else -1."""
        self.root = -1
        """The descriptor of an image's root, once a child waits; else -1."""
        self.child: Child | None = None
        """The child that waits for a program."""
        self.dead = ""
        """The reason the slot is unusable; "" while it is usable."""
        self.frozen = False
        """True if its process was stopped from outside: no program is to blame for a timeout."""
        self.disk_mb = 0
        """The size of the work folder."""
        self._config = config
        self._cgroup = cgroup
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, Child] = {}
        self._kills: dict[int, asyncio.TimerHandle] = {}
        """The timers, by child, that close the slot if killing the child does not help."""
        self._awaited: asyncio.Future[None] | None = None
        """A future that is done once a child waits (at first, once the slot has started)."""
        self._soon: asyncio.Handle | None = None
        """The call that will prepare another child, unless a fresh work folder is wanted first."""
        self._fresh = 0
        """The number of requested work folders still to come; children before them are old."""
        self._life = 0
        """The count of work folders."""
        self._replaced = 0
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._vital: Vital | None = None
        """The watch over our own processes in the slot; programs may stop themselves."""
        self._landlock_end: LandlockEnd | None = None
        self._control: socket.socket | None = None

    # ------------------------------------------------------------------ life
    async def start(self, *, ahead: bool = False) -> None:
        """Start the process and wait until it is in its namespaces.

        ahead: True for a process that only prepares what all images have in common: `enter` gives
            it an image, once.

        Raises:
            SandboxUnavailable: the kernel refused a step.
            SandboxLost: it died.
            OSError: there was no process or descriptor left.
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
                "ahead": self._config.ahead() if ahead else [],
            }
            await self._order(config, "start")
        except BaseException as error:
            self.close(f"it did not start: {str(error) or type(error).__name__}")
            raise

    async def _order(self, order: Mapping[str, Any], what: str) -> None:
        if self._control is None:
            raise SandboxLost(self.dead)
        self._control.send(json.dumps(order).encode())
        await self._wait(what)

    def _spawn(self) -> None:
        # Not in a thread: the process dies with the thread that started it.
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = mine
        mine.setblocking(False)
        script = [*self._config.command(), str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                script,
                pass_fds=[theirs.fileno()],
                # Symbols are resolved at the start, in memory that all children share.
                env={"PATH": "/usr/bin:/bin", "LD_BIND_NOW": "1", **self._config.environment},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        # With namespaces there are two processes: the one outside, and process 1.
        self._vital = Vital(self._process.pid, depth=0 if self._by_landlock else 1)
        self._loop.add_reader(mine, self._read)

    @property
    def _by_landlock(self) -> bool:
        return self._config.isolation == "landlock"

    def look(self) -> None:
        """Close the slot if it is frozen; to be called repeatedly."""
        if not self._closed and self._vital is not None and (pid := self._vital.frozen()):
            self._close_frozen(pid)

    def look_now(self) -> None:
        """Close the slot if it is stopped at this moment, after a timeout."""
        if not self._closed and self._vital is not None and (pid := self._vital.stopped()):
            self._close_frozen(pid)

    def _close_frozen(self, pid: int) -> None:
        self.frozen = True
        self.close(f"it is frozen: its process {pid} was stopped (SIGSTOP)")

    @property
    def was_ready(self) -> bool:
        """Return True if the slot has ever had a work folder."""
        return self._life > 0

    def close(self, why: str = "closed") -> None:
        """Kill everything in the slot; `gone` reports when that is done. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.dead = self.dead or why
        if self._cgroup is not None:
            self._cgroup.oom_kills()  # while the group exists
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._process is not None and self.frozen:
            self._process.send_signal(signal.SIGCONT)  # a stopped process would never end
        if self._process is not None and self._by_landlock:
            # The process ends its children and their leftovers when its control socket is closed.
            sweep = [*self._config.command(), "sweep", tempfile.gettempdir()]
            self._landlock_end = LandlockEnd(self._process, sweep)
        elif self._process is not None:
            kill_process_1(self._process.pid)
        self._forget(SandboxLost(self.dead))
        self._on_death(self)

    def gone(self) -> bool:
        """Return True if nothing is left of a closed slot."""
        if not self._closed:
            return False
        if self._landlock_end is not None and not self._landlock_end.over():
            return False
        if self._process is not None and self._process.poll() is None:
            return False
        return self._cgroup is None or self._cgroup.remove()

    def holds(self, pid: int) -> bool:
        """Return True if the process is one of this slot's: a descendant of its first."""
        return self._process is not None and descends(pid, self._process.pid)

    # ------------------------------------------------------------------ for a sandbox
    def fresh(self, disk_mb: int, why: str = "the sandbox was closed") -> None:
        """End everything in the slot and request an empty work folder; `ready` waits for it."""
        self._forget(SandboxLost(why))
        self.disk_mb = disk_mb
        self._replaced = 0
        self._life += 1
        self._fresh += 1
        self._command(wire.FRESH, disk_mb)

    def limited(self, limits: Limits) -> bool:
        """Return True if `limit` would change nothing."""
        return self._cgroup is None or self._cgroup.limited(**_totals(limits))

    def limit(self, limits: Limits) -> None:
        """Limit all processes of the slot together, if there is a cgroup.

        Raises:
            OSError: the kernel refused.
        """
        if self._cgroup is not None:
            self._cgroup.limit(**_totals(limits))

    def oom_kills(self) -> int:
        """Return the number of out-of-memory kills so far; 0 if there is no cgroup."""
        return self._cgroup.oom_kills() if self._cgroup is not None else 0

    async def ready(self) -> Child:
        """Return the waiting child, which the caller owns from now on.

        Raises:
            SandboxLost: the slot died, or was given another work folder in the meantime.
        """
        await self.prepared()
        child, self.child = self.child, None
        assert child is not None
        return child

    async def prepared(self) -> None:
        """Wait until there is a waiting child.

        Raises:
            SandboxLost: see `ready`.
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
        """Take a child back from the caller of `ready`: kill it if it still runs; prepare another.

        No other is prepared if `fresh` is called in this turn of the event loop: most sandboxes are
        closed as soon as their only program has ended.
        """
        if not child.ended.done():
            child.ended.cancel()
        if child.ended.cancelled():
            self.kill(child)  # then `_done` releases it
            return
        child.close()
        self.prepare(child)

    def prepare(self, after: Child) -> None:
        """Schedule another child, as `after` is used up."""
        if after.life == self._life and self._soon is None and self._control is not None:
            self._soon = self._loop.call_soon(self._another)

    def lasting(self, child: Child) -> None:
        """Mark `child` as a session."""
        self._command(wire.LASTING, child.number)

    def kill(self, child: Child) -> None:
        """Kill the child's program; close the slot if that does not help."""
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
        """Forget all children and the work folder; their waiters get `error`."""
        self._not_soon()
        for timer in self._kills.values():
            timer.cancel()
        self._kills.clear()
        for child in self._children.values():
            child.fail(error)
        self._children.clear()
        self.child = None
        for folder in (self.box, self.root):
            if folder >= 0:
                os.close(folder)
        self.box = self.root = -1
        self._notify(error)

    async def _wait(self, what: str) -> None:
        """Wait for `_notify`, or for an error."""
        assert self._awaited is None, "two wait for one slot"
        if self._closed:  # by the command that was to be waited for: nothing would report it
            raise SandboxLost(self.dead)
        why = f"the slot did not {what} within {START_TIMEOUT_S:g} s"
        alarm = self._loop.call_later(START_TIMEOUT_S, self.close, why)
        awaited = self._awaited = self._loop.create_future()
        try:
            await awaited
        finally:
            alarm.cancel()
            if self._awaited is awaited:
                self._awaited = None

    def _notify(self, error: SandboxError | None = None) -> None:
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
                self._control, 8192, 3, socket.MSG_CMSG_CLOEXEC
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
        elif kind in (wire.READY, wire.AHEAD):
            self._notify()
        elif kind == wire.FAILED:
            self.dead = body[4:].decode("utf-8", "replace")
            number = struct.unpack("i", body[:4])[0]
            text = f"{self.dead} (errno {number})" if number else self.dead
            self._notify(SandboxUnavailable(f"the slot could not start: {text}"))
        else:
            self._handle_other(kind, body, handles)

    def _handle_other(self, kind: bytes, body: bytes, handles: list[int]) -> None:
        """Handle a message that only another kind of slot sends."""
        raise AssertionError(f"a slot sent {kind!r}")

    def _add(self, number: int, handles: list[int]) -> None:
        if len(handles) > 1:
            self._fresh -= 1
        if self._fresh:  # of an old work folder
            for handle in handles:
                os.close(handle)
            return
        if len(handles) > 1:
            self.box, self.root = handles[1], handles[2] if len(handles) > 2 else -1
        self.child = self._children[number] = Child(
            number, socket.socket(fileno=handles[0]), self._life
        )
        self._notify()

    def _done(self, number: int, ended: Ended) -> None:
        child = self._children.pop(number, None)
        if child is None:
            return
        if timer := self._kills.pop(number, None):
            timer.cancel()
        child.finish(ended)
        if child is self.child:
            self._replace_waiting(child)
        elif child.ended.cancelled():  # its caller has left; the sandbox goes on
            child.close()
            self.prepare(child)

    def _replace_waiting(self, child: Child) -> None:
        """Replace the waiting child, which has ended; a session may kill it, but not forever."""
        self.child = None
        start_error = child.start_error()
        child.close()
        self._replaced += 1
        if start_error or self._replaced > MAX_REPLACED:
            self.close(f"a waiting process ended: {start_error or 'killed again and again'}")
        else:
            self.prepare(child)


def _totals(limits: Limits) -> dict[str, int]:
    """Return the limits of all processes together, whose files are memory, too."""
    return {"memory_mb": limits.memory_mb + limits.disk_mb, "processes": limits.processes}
