"""The sessions of a runner: their start, cells, forks and end."""

from __future__ import annotations

import base64
import errno
import signal
import socket

from arl_isolation import programs

from . import repl
from .forking import ROOM, pid_of
from .jobs import Session

START_S = 10.0
"""The longest time a session may take to begin."""


class Sessions:
    """The open sessions; `runner` forks for them, and sends their replies."""

    def __init__(self, runner) -> None:
        self._runner = runner
        self._loop = runner.loop
        self.open: dict = {}
        self._count = 0

    def pids(self) -> set:
        return {session.pid for session in self.open.values()} - {0}

    def settle(self) -> None:
        """Conclude the sessions that have ended."""
        for session in [session for session in self.open.values() if session.ended]:
            self._over(session)

    def end_all(self, why: str) -> None:
        """Refuse all open requests with the reason `why`; the next sweep kills the processes."""
        for session in list(self.open.values()):
            if session.opening is not None:
                self._give_up(session, why)
            else:
                session.signal(signal.SIGKILL)
                if session.cell is not None:
                    over = OSError(errno.ESRCH, f"the session is over: {why}")
                    self._runner.refuse(session.cell, over)
                self._forget(session)
            for id in session.closing:
                self._runner.reply(id, {})

    def open_session(self, request: dict) -> None:
        limits = {k: v for k, v in request["limits"].items() if k != "cpu_s"}
        if request["kind"] not in ("python", "shell"):
            raise ValueError(f"no session is of the kind {request['kind']!r}")
        self._runner.box.open_up()
        session = self._new_session(request["id"], request["kind"], limits)
        session.fork = self._runner.fork(
            [self._runner.null, *session.output.writers],
            {"become": session.kind, "limits": limits},
            lambda pid: self._has_begun(session, pid),
            lambda why: self._give_up(session, why),
        )

    def cancel(self, id: int) -> None:
        """Give up the session that this request was to open."""
        for session in [each for each in self.open.values() if each.opening == id]:
            self._give_up(session, "cancelled")

    def cell(self, request: dict) -> None:
        session = self._session(request)
        code = base64.b64decode(request["code"])
        if session.kind == "python":
            data = programs.CELL.pack(programs.RUN, len(code)) + code
        else:
            data = code.replace(b"\0", b"") + b"\0"
        session.begin(request["id"], data, request["timeout_s"])

    def interrupt(self, request: dict) -> dict:
        session = self.open.get(request["session"])
        if session and session.cell is not None:
            session.signal(signal.SIGINT)
        return {}

    def fork(self, request: dict) -> None:
        parent = self._session(request)
        if parent.kind != "python":
            raise ValueError("only Python sessions can be forked")
        session = self._new_session(request["id"], "python", {"output_bytes": parent.output.limit})
        session.conn, theirs = socket.socketpair()
        session.conn.setblocking(False)
        session.conn.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._attend(session)
        try:
            with theirs:
                handles = [self._runner.null, *session.output.writers, theirs.fileno()]
                parent.conn.sendall(programs.CELL.pack(programs.FORK, 0))
                repl.send_handles(parent.conn, repl.READY, handles)
        except BaseException:
            self._forget(session)
            raise
        session.output.close_writers()

    def close_session(self, request: dict) -> dict | None:
        session = self.open.get(request["session"])
        if session is None:
            return {}
        session.closing.append(request["id"])
        session.signal(signal.SIGKILL)
        return None

    def _new_session(self, id: int, kind: str, limits: dict) -> Session:
        self._count += 1
        session = Session(self._count, kind, self._loop, limits["output_bytes"])
        session.opening = id
        self.open[session.number] = session
        return session

    def _has_begun(self, session: Session, pid: int) -> None:
        assert session.fork is not None
        session.pid, session.conn = pid, session.fork.conn
        session.ended = self._runner.ended_unknown(pid)
        session.output.close_writers()
        self._attend(session)

    def _attend(self, session: Session) -> None:
        """Watch the session for its first message."""
        self._loop.watch(session.conn.fileno(), lambda: self._read(session))
        session.timer = self._loop.later(START_S, lambda: self._give_up(session, "no answer"))

    def _session(self, request: dict) -> Session:
        session = self.open.get(request["session"])
        if session is None or session.ended or session.closing:
            raise OSError(errno.ESRCH, "the session is over")
        if session.cell is not None or session.opening is not None:
            raise OSError(errno.EBUSY, "the session is busy")
        return session

    def _read(self, session: Session) -> None:
        try:
            data, ancillary, _, _ = session.conn.recvmsg(256, ROOM)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if session.opening is not None:
            self._greeting(session, data, ancillary)
        elif not data:
            self._loop.forget(session.conn.fileno())
            session.signal(signal.SIGKILL)
        elif session.cell is not None:
            id = session.cell
            self._runner.reply(id, session.result(data))

    def _greeting(self, session: Session, data: bytes, ancillary: list) -> None:
        """Handle the first message of a session."""
        if data[:1] != repl.READY:
            text = data[1:].decode("utf-8", "replace") if data[:1] == repl.GAVE_UP else ""
            self._give_up(session, text or data.decode("utf-8", "replace"))
            return
        if not session.pid:  # a fork, which leaves its parent's kernel session once it is known
            session.pid = pid_of(ancillary)
            session.ended = self._runner.ended_unknown(session.pid)
            session.conn.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
            session.conn.send(repl.READY)
            return
        self._loop.cancel(session.timer)
        id, session.opening = session.opening, None
        assert id is not None
        self._runner.reply(id, {"session": session.number})

    def _give_up(self, session: Session, why: str) -> None:
        text = base64.b64decode(session.output.take()["stderr"]).decode("utf-8", "replace")
        self._runner.refuse(
            session.opening, OSError(0, f"it did not start: {why} {text[-500:]}".strip())
        )
        session.signal(signal.SIGKILL)
        self._forget(session)

    def _forget(self, session: Session) -> None:
        del self.open[session.number]
        session.close()

    def _over(self, session: Session) -> None:
        if session.opening is not None:
            self._give_up(session, "it ended")
        else:
            if session.cell is not None:
                id = session.cell
                self._runner.reply(id, session.result(b""))
            self._forget(session)
        self._runner.sweep()
        for id in session.closing:
            self._runner.reply(id, {})
