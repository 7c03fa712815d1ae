"""The client that vLLM's trainer engines drive, against real HTTP servers."""

from __future__ import annotations

import base64
import pickle
import time

import pytest
from arl_vllm.native import FleetClient
from fake_engine import FakeEngine, engine

from agentgym_rl.core import UNKNOWN_LABEL, WeightsError
from agentgym_rl.weights import Publication
from tests.kit.cases import cases


def joined(**engines: FakeEngine) -> FleetClient:
    publication = Publication(
        {name: engine.url for name, engine in engines.items()},
        label="0.3",
        interrupt="recompute",
        polls_staging=False,
        deadline=time.monotonic() + 5,
    )
    client = FleetClient()
    client.join(publication, {name: engine.workers for name, engine in engines.items()})
    return client


def test_a_transfer_pauses_labels_and_resumes_every_engine():
    with engine() as one, engine() as two:
        client = joined(a=one, b=two)
        client.start_weight_update()
        assert one.paused
        assert two.paused
        assert {one.label, two.label} == {UNKNOWN_LABEL}
        client.update_weights({"names": []})
        client.finish_weight_update()
    pause = ["/pause?mode=keep&clear_cache=true", "/update_weight_version"]
    update = [*pause, "/start_weight_update", "/update_weights"]
    for server in (one, two):
        assert server.paths == [*update, "/finish_weight_update", "/resume", "/weight_info"]
        assert (server.label, server.paused) == ("0.3", False)
    assert client.pauses.keys() == {"a", "b"}
    assert all(0 < end - start < 5 for start, end in client.pauses.values())


def test_every_engine_has_ranks_of_its_own():
    info = {"rank_offset": 1, "world_size": 6}
    with engine(workers=2) as one, engine(workers=3) as two:
        joined(a=one, b=two).init_weight_transfer_engine(info)
    sent = [server.log[0][1]["init_info"] for server in (one, two)]
    assert sent == [{**info, "rank_offset": 1}, {**info, "rank_offset": 3}]


def test_ranks_are_given_to_nobody_who_needs_none():
    with engine() as one:
        joined(a=one).init_weight_transfer_engine({"packed": True})
    assert one.log[0][1] == {"init_info": {"packed": True}}


def test_handles_travel_pickled():
    handles = {"GPU-1": (1, "two", b"three")}
    with engine() as one:
        client = joined(a=one)
        client.start_weight_update()
        client.update_weights({"names": ["w"], "ipc_handles": handles})
    sent = one.log[-1][1]["update_info"]
    assert sent.keys() == {"names", "ipc_handles_pickled"}
    assert pickle.loads(base64.b64decode(sent["ipc_handles_pickled"])) == handles


@cases("step", ["/pause", "/start_weight_update", "/update_weights", "/finish"])
def test_the_failure_of_one_ends_it_for_all_and_says_whether_weights_were_touched(step):
    with engine(fail=step) as one, engine() as two:
        client = joined(a=one, b=two)
        with pytest.raises(WeightsError, match=rf"broken off: a \({one.url}\).*{step}.*no such"):
            transfer(client)
        assert client.wrote == (step != "/pause")
        assert not client.failures.empty()
        assert "/resume" not in one.paths + two.paths


def transfer(client: FleetClient) -> None:
    client.start_weight_update()
    client.update_weights({"names": []})
    client.finish_weight_update()


def test_who_has_left_takes_no_part():
    with engine() as one:
        client = joined(a=one)
        client.leave()
        with pytest.raises(WeightsError, match="takes part in no publication"):
            client.finish_weight_update()
    assert one.log == []
