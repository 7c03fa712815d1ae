"""Which network interface of this machine leads to the other ranks."""

from __future__ import annotations

import fcntl
import socket
import struct
from urllib.parse import urlsplit

SIOCGIFADDR = 0x8915  # linux/sockios.h
LOOPBACK = "lo"


def interface_to(rendezvous: str) -> str:
    """Its name; loopback where `rendezvous` is no `tcp://host:port`, or on no interface's address.

    Raises:
        OSError: there is no way to the host.
    """
    host = urlsplit(rendezvous).hostname if rendezvous.startswith("tcp://") else None
    if not host:
        return LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address(probe, name) == own:
                return name
    return LOOPBACK


def _address(probe: socket.socket, name: str) -> str:
    """An interface's IPv4 address; "" if it has none."""
    request = struct.pack("256s", name.encode()[:15])
    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])
