"""The network interface on which ranks meet."""

import socket
from pathlib import Path

import pytest

from agentgym_rl.trainer.world import _ipv6_interfaces, interface_to


@pytest.mark.parametrize(
    "rendezvous", ["", "file:///tmp/meet", "tcp://127.0.0.1:9", "tcp://[::1]:9"]
)
def test_ranks_of_one_machine_meet_on_loopback(rendezvous):
    assert interface_to(rendezvous) == "lo"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_interfaces_are_known_by_their_addresses_of_ipv6():
    assert _ipv6_interfaces()["::1"] == "lo"


def test_ranks_of_several_meet_where_the_way_leads():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError as error:
            pytest.skip(f"this machine has no network: {error}")
        own = probe.getsockname()[0]
    name = interface_to(f"tcp://{own}:9")
    assert name in {name for _, name in socket.if_nameindex()}
    assert (name == "lo") == own.startswith("127.")
