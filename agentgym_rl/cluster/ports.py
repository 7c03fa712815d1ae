"""The choice of free ports for the servers of a run: engines, ranks, the gateway."""

from __future__ import annotations

import socket


def reserved_port(address: str = "127.0.0.1") -> socket.socket:
    """Return a socket that reserves a free port, while the socket is open, for a server to be
    started: the kernel does not assign the port to a process that requests any free port, but a
    server that is started with its number, and sets SO_REUSEADDR as servers do, can listen
    there."""
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, 0))
    except OSError:
        held.close()
        raise
    return held


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of this host's `address` that is free now."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]
