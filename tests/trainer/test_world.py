"""The network interface on which ranks meet."""

import socket

import pytest

from agentgym_rl.trainer.world import interface_to


@pytest.mark.parametrize(
    "rendezvous", ["", "file:///tmp/meet", "tcp://127.0.0.1:9", "tcp://[::1]:9"]
)
def test_ranks_of_one_machine_meet_on_loopback(rendezvous):
    assert interface_to(rendezvous) == "lo"


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
