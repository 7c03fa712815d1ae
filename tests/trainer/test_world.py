"""The network interface on which ranks meet."""

import socket
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from agentgym_rl.trainer import world
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


@pytest.mark.parametrize(("replicas", "groups"), [(1, [[0, 1, 2, 3]]), (2, [[0, 2], [0, 1]])])
def test_all_ranks_of_a_group_take_part_in_its_first_call(monkeypatch, replicas, groups):
    """`Gathering` sends to one rank, and only from ranks that have something."""
    called: list[list[int]] = []
    reduce = dist.all_reduce

    def all_reduce(tensor, *, group):
        called.append(dist.get_process_group_ranks(group))
        return reduce(tensor, group=group)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        world._mesh(world._device("cpu", 0), 4, replicas)
    finally:
        dist.destroy_process_group()
    assert called == groups
