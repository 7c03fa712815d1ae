from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
from trainer_samples import make_items, make_shards
from trainer_servers import TOKEN, controller

from agentgym_rl.core.batch import BatchShard, StepReport
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.trainer import client as client_module
from agentgym_rl.trainer.client import ControllerClient, RunEnding
from tests.kit.cases import cases


def shards() -> list[BatchShard]:
    return [make_shards(*make_items(step=step), step=step)[0] for step in range(2)]


def test_a_batch_is_asked_for_until_it_is_complete():
    with controller(shards()) as server:
        client = ControllerClient(server.url, TOKEN)
        client.ready(0)
        found = client.batch(1, rank=0, timeout_s=5)
        with pytest.raises(RunEnding):
            client.batch(2, rank=0, timeout_s=5)
        client.report(StepReport(1, 2, {"loss": 0.5}, [("proximal", 1.0, 2.0)]))
    assert (server.asked, server.ready) == (4, [0])
    assert found.pack() == server.shards[1].pack()
    assert server.reports[0].intervals == [("proximal", 1.0, 2.0)]


def test_a_publication_waits_for_engines_and_says_what_came_of_it():
    with controller() as server:
        client = ControllerClient(server.url, TOKEN)
        assert client.begin_publication(3, timeout_s=5) == {"e": server.url}
        client.end_publication(3, served=["e"], failed={"f": "gone"})
    assert server.begun == [3, 3]
    assert server.ended == [{"version": 3, "served": ["e"], "failed": {"f": "gone"}}]


def test_a_publication_without_engines_ends_the_wait():
    with controller() as server:
        server.begin = lambda version: (204, b"")
        with pytest.raises(TrainerError, match=r"no engine .* policy version 3 within 0 s"):
            ControllerClient(server.url, TOKEN).begin_publication(3, timeout_s=0.1)


def test_a_publication_of_a_run_that_is_ending_begins_no_more():
    with controller() as server:
        server.begin = lambda version: (410, b"the run is ending")
        with pytest.raises(RunEnding):
            ControllerClient(server.url, TOKEN).begin_publication(3, timeout_s=5)


@cases("body", [b"", b"[]", b"{}", b'{"engines": 3}', b'{"engines": {"e": 1}}'])
def test_engines_that_are_none_are_an_error_that_names_the_version(body):
    with controller() as server:
        server.begin = lambda version: (200, body)
        with pytest.raises(TrainerError, match=r"publication of version 3: .* names no engines"):
            ControllerClient(server.url, TOKEN).begin_publication(3, timeout_s=5)


def test_a_batch_that_never_comes_ends_the_wait():
    with controller(answer=lambda asked: (204, b"")) as server:
        start = time.monotonic()
        with pytest.raises(TrainerError, match=r"batch 0 is not complete, .* for 0 s"):
            ControllerClient(server.url, TOKEN).batch(0, rank=0, timeout_s=0.2)
        assert time.monotonic() - start < 30


def test_a_batch_may_take_long_while_engines_sample_for_it(monkeypatch):
    now_s, answers = 0.0, iter([202] * 8 + [204] * 100)

    def wait(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def poll(method, path, *body) -> tuple[int, bytes]:
        wait(10.0)
        return next(answers), b""

    client = ControllerClient("http://nowhere", TOKEN)
    monkeypatch.setattr(client, "_call", poll)
    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=wait)
    monkeypatch.setattr(client_module, "time", clock)
    with pytest.raises(TrainerError, match="no engine has sampled a token for 35 s"):
        client.batch(0, rank=0, timeout_s=35.0)
    assert now_s == pytest.approx(80 + 40, abs=1)


def test_a_rank_tells_that_it_lives_while_it_makes_progress(monkeypatch):
    monkeypatch.setattr(client_module, "_TELL_EVERY_S", 0.01)
    told, passes = threading.Semaphore(0), iter(range(10**6))
    client = ControllerClient("http://nowhere", TOKEN)
    monkeypatch.setattr(client, "check_current", told.release)
    with client.telling(lambda: next(passes)):
        assert all(told.acquire(timeout=60) for _ in range(3))
    while told.acquire(blocking=False):
        pass
    with client.telling(lambda: 0.0):
        assert not told.acquire(timeout=0.2)


def test_a_wrong_token_is_an_error():
    with controller() as server, pytest.raises(TrainerError, match="401: unknown token"):
        ControllerClient(server.url, "other").batch(0, rank=0, timeout_s=5)


def test_a_dead_controller_is_an_error_at_once():
    with controller() as server:
        url = server.url
    start = time.monotonic()
    with pytest.raises(TrainerError, match=f"{url}.*ConnectionRefused"):
        ControllerClient(url, TOKEN).batch(0, rank=0, timeout_s=60)
    assert time.monotonic() - start < 30


def test_a_controller_that_hangs_up_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = ControllerClient(f"http://127.0.0.1:{server.getsockname()[1]}", TOKEN)

        def hang_up() -> None:
            connection, _ = server.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(TrainerError, match="IncompleteRead"):
            client.batch(0, rank=0, timeout_s=5)
        thread.join(timeout=60)


def hostile() -> dict[str, bytes]:
    good = shards()[0].pack()
    head = msgspec.msgpack.decode(good)
    encode = msgspec.msgpack.encode
    row = head["minibatches"][0][0]
    short_row = {**row["row"], "tokens": row["row"]["tokens"][:-1]}
    return {
        "empty": b"",
        "text": b"<html>not found</html>",
        "truncated": good[:-5],
        "list": encode([1, 2]),
        "number": encode(7),
        "null": encode(None),
        "no minibatches": encode({k: v for k, v in head.items() if k != "minibatches"}),
        "minibatches null": encode({**head, "minibatches": None}),
        "unknown key": encode({**head, "surprise": 1}),
        "row cut": encode({**head, "minibatches": [[{"episode": 0, "row": short_row}]]}),
        "row no bytes": encode({**head, "minibatches": [[{"episode": 0, "row": 3}]]}),
        "other step": encode({**head, "step": 9}),
    }


@cases("name", hostile())
def test_hostile_bytes_are_an_error_that_names_the_batch(name):
    body = hostile()[name]
    with (
        controller(answer=lambda asked: (200, body)) as server,
        pytest.raises(TrainerError, match="batch 0"),
    ):
        ControllerClient(server.url, TOKEN).batch(0, rank=0, timeout_s=5)
