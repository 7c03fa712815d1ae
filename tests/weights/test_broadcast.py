"""Broadcast groups of real processes on this machine."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from arl_gloo import broadcast
from arl_gloo.broadcast import BroadcastGroup
from broadcast_child import TENSORS

from agentgym_rl.core import WeightsError
from agentgym_rl.weights import fingerprint
from tests.e2e.forked import Forked

pytestmark = pytest.mark.slow

PATH = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


@contextmanager
def members(
    *crcs: str,
    size: int = 0,
    timeout_s: float = 60,
    meeting_s: float = 60,
    bucket_bytes: int = 1 << 20,
) -> Iterator[tuple[BroadcastGroup, list[Forked]]]:
    """Rank 0's group, and the processes of the other ranks."""
    listener = socket.create_server(("127.0.0.1", 0))
    port, size = listener.getsockname()[1], size or len(crcs) + 1
    children = [
        Forked(
            "broadcast_child",
            *map(str, (port, rank, size, timeout_s, crc, bucket_bytes)),
            env={**os.environ, "PYTHONPATH": PATH},
        )
        for rank, crc in enumerate(crcs, start=1)
    ]
    try:
        group = BroadcastGroup(
            address="127.0.0.1",
            port=port,
            rank=0,
            world_size=size,
            timeout_s=meeting_s,
            listener=listener,
        )
        for child in children:
            assert line(child) == "met"
        yield group, children
        group.close()
    finally:
        for child in children:
            child.kill()
            child.communicate(timeout=60)


def line(child: Forked) -> str:
    return child.readline().strip()


@pytest.mark.parametrize("bucket_bytes", [1, 40, 1 << 20])
def test_tensors_come_as_they_were_sent_and_the_end_is_noticed(bucket_bytes, monkeypatch):
    monkeypatch.setattr(broadcast, "BUCKET_BYTES", bucket_bytes)
    crc = fingerprint(TENSORS)
    with members(crc, crc, bucket_bytes=bucket_bytes) as (group, children):
        for _ in range(2):
            group.send(TENSORS)
            assert [line(child) for child in children] == ["same", "same"]
        group.close()
        start = time.monotonic()
        lines = [line(child) for child in children]
        assert all("of 3: broadcast of" in text for text in lines), lines
        assert time.monotonic() - start < 60


def test_what_is_not_what_was_sent_is_refused():
    with members("00000000") as (group, children):
        group.send(TENSORS)
        assert "fingerprint" in line(children[0])


@pytest.mark.parametrize("dying", [0, 1])
def test_a_member_that_dies_is_an_error_and_another_group_can_be_made(dying):
    with members(*[fingerprint(TENSORS)] * 2, timeout_s=120) as (group, children):
        children[dying].kill()  # now that all have met
        children[dying].wait(timeout=60)
        # Gloo tells at once, but for one time in thousands on a busy machine: then the deadline.
        with pytest.raises(WeightsError, match=r"rank 0 of 3: broadcast of \d+ bytes: Runtime"):
            group.send(TENSORS, timeout_s=20)
    with members(fingerprint(TENSORS)) as (group, children):
        group.send(TENSORS)
        assert line(children[0]) == "same"


def test_a_member_that_never_comes_costs_the_deadline():
    start = time.monotonic()
    with (
        pytest.raises(WeightsError, match=r"rank 0 of 3: the members did not meet within 1\.0 s"),
        members(fingerprint(TENSORS), size=3, meeting_s=1),
    ):
        pass
    assert time.monotonic() - start < 50


def test_a_silent_sender_costs_the_deadline():
    with members(fingerprint(TENSORS), timeout_s=5) as (_, children):
        assert "Timed out" in line(children[0])


def test_a_closed_group_says_so_and_the_default_group_is_untouched():
    group = BroadcastGroup(address="127.0.0.1", port=0, rank=0, world_size=1, timeout_s=5)
    group.send(TENSORS)
    assert not torch.distributed.is_initialized()
    group.close()
    with pytest.raises(WeightsError, match="is closed"):
        group.send(TENSORS)
