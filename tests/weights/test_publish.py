"""The publisher against real HTTP servers that keep a log of what they are asked."""

from __future__ import annotations

import gc
import re
import socket
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engine import STEPS, FakeEngine, engine

from agentgym_rl.core import PAUSE_PATHS, WeightsError
from agentgym_rl.runtime.http_client import call
from agentgym_rl.weights import Publisher, SharedFiles, opened_version
from agentgym_rl.weights.publish import Published
from tests.kit.cases import cases
from tests.kit.publishing import publish_now
from tests.kit.versions import read_version

TENSORS = {"a": torch.arange(6.0)}


def publisher(folder: Path, **options: Any) -> Publisher:
    options = {"interrupt": "keep", "timeout_s": 5, "polls_staging": True, **options}
    made = Publisher(
        transport=SharedFiles(folder, incarnation=options.get("incarnation", 0)), **options
    )
    made.prepare(3, TENSORS)
    return made


def publish(folder: Path, *engines: FakeEngine, **options: Any) -> Published:
    urls = {f"engine-{index}": engine.url for index, engine in enumerate(engines)}
    return publish_now(publisher(folder, **options), urls, 3)


def test_the_routes_in_their_order_staged_before_the_pause(tmp_path):
    with engine(staging_s=0.05) as one, engine(staging_s=0.05) as two:
        done = publish(tmp_path, one, two)
    file = tmp_path / "v3"
    for server in (one, two):
        assert server.log[0][0] == "/init_weight_transfer_engine"
        assert server.log[1:3] == [
            ("/start_weight_update", {}),
            ("/update_weights", {"update_info": {"path": str(file)}}),
        ]
        assert server.log[3] == ("/collective_rpc", {"method": "arl_staging"})
        assert server.log[-4:-1] == [
            ("/pause?mode=keep&clear_cache=false", None),
            ("/finish_weight_update", {"weight_version": "0.3"}),
            ("/resume", None),
        ]
    with opened_version(file) as version:
        assert version.label == "0.3"
    assert done.served == ("engine-0", "engine-1")
    assert done.failed == {}
    assert 0 < done.pause_s < done.seconds
    assert 0.05 < done.stage_s < done.seconds - done.pause_s


def test_the_same_weights_again_are_only_a_number(tmp_path):
    """But an engine that has other weights, because it restarted, say, gets them."""
    with engine() as there, engine() as back:
        urls = {"there": there.url, "back": back.url}
        made = publisher(tmp_path)
        publish_now(made, {"there": there.url}, 3)
        there.log.clear()
        made.prepare(4, TENSORS)
        done = publish_now(made, urls, 4, same_as=3)
    assert (there.label, back.label) == ("0.4", "0.4")
    assert there.paths == ["/weight_info", "/update_weight_version", "/weight_info"]
    file = str(tmp_path / "v4")
    assert ("/update_weights", {"update_info": {"path": file}}) in back.log
    assert read_version(tmp_path / "v4")["a"].equal(TENSORS["a"])
    assert set(done.served) == {"there", "back"}
    assert done.pauses["there"][0] == done.pauses["there"][1]
    assert done.pauses["back"][0] < done.pauses["back"][1]


@cases("interrupt", PAUSE_PATHS)
def test_every_interrupt_pauses_its_own_way(tmp_path, interrupt):
    with engine() as server:
        publish(tmp_path, server, interrupt=interrupt, incarnation=2, polls_staging=False)
    assert PAUSE_PATHS[interrupt] in server.paths
    assert server.label == "2.3"
    assert "/collective_rpc" not in [path for path, _ in server.log]


def test_draining_is_no_pause(tmp_path):
    with engine(hang="/pause", hang_s=0.5) as server:
        done = publish(tmp_path, server, interrupt="wait", timeout_s=20)
        assert done.seconds - done.pause_s > 0.5
        done = publish(tmp_path, server, interrupt="abort", timeout_s=20)
        assert done.pause_s > 0.5


@cases("step", STEPS)
def test_an_engine_that_dies_at_any_step_is_left_out(tmp_path, step):
    with engine(die=step) as dying, engine() as living:
        done = publish(tmp_path, dying, living)
    assert done.served == ("engine-1",)
    assert living.label == "0.3"
    assert not living.paused
    assert done.failed.keys() == {"engine-0"}
    assert f"engine-0 ({dying.url}): " in done.failed["engine-0"]
    assert f"{step}" in done.failed["engine-0"]
    assert "RemoteDisconnected" in done.failed["engine-0"]


@pytest.mark.slow
def test_an_engine_that_hangs_at_any_step_leaves_time_to_the_others(tmp_path):
    def published(step: str) -> Published:
        (folder := tmp_path / str(STEPS.index(step))).mkdir()
        with engine(hang=step, hang_s=6) as hanging, engine() as living:
            return publish(folder, hanging, living, timeout_s=5)

    with ThreadPoolExecutor(len(STEPS)) as threads:  # the time passes for all at once
        for step, done in zip(STEPS, threads.map(published, STEPS), strict=True):
            assert done.served == ("engine-1",), step
            assert f"{step}" in done.failed["engine-0"]
            assert "no answer in" in done.failed["engine-0"]


@pytest.mark.parametrize("step", ["/pause", "/finish_weight_update"])
def test_a_failure_in_the_pause_resumes_the_engine(tmp_path, step):
    with engine(fail=step) as server:
        with pytest.raises(WeightsError, match=rf"version 3: engine-0.*{step}.*HTTP 500"):
            publish(tmp_path, server)
        assert not server.paused
        assert server.paths[-1] == "/resume"


def test_an_engine_that_cannot_stage_says_why_and_is_never_paused(tmp_path):
    with engine(staging_error="weights are damaged") as one, engine(fail="/update") as two:
        with pytest.raises(WeightsError, match=r"weights are damaged.*; engine-1.*no such file"):
            publish(tmp_path, one, two)
        assert not any(path.startswith("/pause") for path in [*one.paths, *two.paths])


def test_staging_that_never_ends_costs_its_share_of_the_time(tmp_path):
    with engine(staging_s=3) as server, engine() as other:
        done = publish(tmp_path, server, other, timeout_s=2)
    assert done.served == ("engine-1",)
    assert "staging: not done in time: ['staging']" in done.failed["engine-0"]


def test_staging_is_to_blame_where_the_last_look_at_it_gets_no_answer(tmp_path):
    def look(body):
        if server.log.count(("/collective_rpc", body)) > 1:
            over.wait(60)
        return 200, {"results": [{"state": "staging", "error": "", "path": ""}]}

    over = threading.Event()
    with engine() as server, engine() as other:
        server._collective_rpc = look
        done = publish(tmp_path, server, other, timeout_s=2)
        over.set()
    reason = done.failed["engine-0"]
    assert re.search(r"staging: not done in time: \['staging'\]; .*no answer in", reason)


def test_an_answer_that_stops_half_way_leaves_no_socket():
    def answer_half() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1 << 16)
            peer.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
            done.wait(60)

    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer_half)
        server.start()
        with warnings.catch_warnings(record=True, action="always") as caught:
            with pytest.raises(TimeoutError) as raised:
                call(f"http://127.0.0.1:{listener.getsockname()[1]}", "GET", "/", timeout_s=0.2)
            raised.value.args += (raised.value,)  # a cycle, so that the collector is who finds it
            del raised
            gc.collect()
        done.set()
        server.join(60)
    assert [str(one.message) for one in caught] == []


def test_an_abandoned_update_is_dropped_first(tmp_path):
    with engine() as server:
        server.active = True
        assert publish(tmp_path, server).served == ("engine-0",)
    assert server.log[1:4] == [
        ("/start_weight_update", {}),
        ("/update_weights", {"update_info": {"discard": True}}),
        ("/start_weight_update", {}),
    ]


def test_after_a_failure_the_next_publication_succeeds(tmp_path):
    with engine(fail="/finish_weight_update") as server:
        with pytest.raises(WeightsError):
            publish(tmp_path, server)
        server.fail = ""
        assert publish(tmp_path, server).served == ("engine-0",)


def test_an_engine_that_serves_another_version_is_found_out(tmp_path):
    with engine(lie=True) as server, pytest.raises(WeightsError, match=r"1\.1.*0\.3"):
        publish(tmp_path, server)


def test_a_worker_that_knows_of_no_update_was_restarted(tmp_path):
    with (
        engine(forgets=True, workers=2) as server,
        pytest.raises(WeightsError, match="worker 0: idle: it knows of no update"),
    ):
        publish(tmp_path, server)


def test_a_dead_engine_is_named(tmp_path):
    with engine() as server:
        pass
    with pytest.raises(WeightsError, match=f"{server.url}.*ConnectionRefused"):
        publish(tmp_path, server)
