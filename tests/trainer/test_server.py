"""The commands between the loop and its ranks, over real HTTP."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

import msgspec
import pytest
from trainer_samples import make_items, make_shards

from agentgym_rl.controller import HttpRanks, RanksApi, RanksFailed, answer
from agentgym_rl.core import BatchShard, Published, StepReport, TrainerError, WeightsError
from agentgym_rl.runtime import HttpClient, serving
from agentgym_rl.runtime.http_server import reply
from agentgym_rl.trainer import server as module
from agentgym_rl.trainer.server import Controller, Final, RankServer
from tests.kit.cases import cases


def shards() -> list[BatchShard]:
    return [make_shards(*make_items(step=step), step=step)[0] for step in range(2)]


def folder(path: str) -> Future[Path | None]:
    done: Future[Path | None] = Future()
    done.set_result(Path(path) if path else None)
    return done


class Rank(threading.Thread):
    """A rank with the commands of a test."""

    def __init__(self, controller: Controller, number: int, commands, passes, complete) -> None:
        super().__init__(daemon=True)
        self.controller, self.number, self.commands = controller, number, commands
        self.server = RankServer(controller, passes=passes, complete=complete)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self.server.served() as url:
                self.controller.ready(self.number, url, version=None if self.number else 3)
                self.server.run(self.commands)
        except Exception as error:
            self.error = error


@asynccontextmanager
async def ranks(
    *commands, passes=lambda: 0.0, complete=lambda metrics: folder(str(metrics["loss"]))
):
    """Ranks with these commands; yields their client and threads."""
    found = HttpRanks(len(commands))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(found.close)
        url = await stack.enter_async_context(serving(RanksApi(found), host="127.0.0.1", port=0))
        controller = Controller(url, found.token)
        threads = [Rank(controller, n, its, passes, complete) for n, its in enumerate(commands)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(60):
            assert await found.begun() == 3
            yield found, threads
            if all(thread.is_alive() for thread in threads):
                await found.stop()
            for thread in threads:
                await asyncio.to_thread(thread.join, 60)


async def until(condition) -> None:
    """Wait for it; `ranks` limits the time."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def reporting(number: int):
    def train(body: bytes) -> bytes:
        shard = BatchShard.unpack(body)
        return StepReport(shard.step, number, {"loss": 0.5}, [("proximal", 1.0, 2.0)]).pack()

    return train


def test_each_rank_gets_its_shard_and_rank_0_reports():
    async def play() -> StepReport:
        seen = [], []
        trains = [lambda body, n=n: (seen[n].append(body), reporting(n)(body))[1] for n in (0, 1)]
        async with ranks(*[{"train": train} for train in trains]) as (client, _):
            found = await client.train(1, (two := shards()))
            assert [[body] == [shard.pack()] for (body,), shard in zip(seen, two, strict=True)]
            return found

    report = asyncio.run(play())
    assert (report.step, report.version) == (0, 0)
    assert report.intervals == [("proximal", 1.0, 2.0)]


def test_a_publication_a_checkpoint_and_its_completion():
    def publish(body: bytes) -> Published:
        what = msgspec.msgpack.decode(body)
        assert what == {"version": 3, "engines": {"e": "http://e"}, "timeout_s": 5.0}
        return Published(0.3, 0.2, {"e": (1.0, 2.0)}, {"f": "gone"})

    async def play() -> None:
        both = {"checkpoint": lambda body: [("checkpoint", 1.0, 2.0)], "export": lambda body: None}
        async with ranks({**both, "publish": publish}, both) as (client, _):
            done = await client.publish(3, {"e": "http://e"}, 5.0)
            assert (done.served, done.failed, done.pause_s) == (("e",), {"f": "gone"}, 1.0)
            intervals = [("checkpoint", 1.0, 2.0)]
            assert await client.checkpoint(4) == {"trainer-0": intervals, "trainer-1": intervals}
            assert await client.complete({"loss": "step-4"}) == Path("step-4")
            assert await client.complete({"loss": ""}) is None
            await client.export()

    asyncio.run(play())


def test_a_checkpoint_is_completed_while_another_batch_trains():
    go_on = threading.Event()

    def train(body: bytes) -> bytes:
        assert go_on.wait(60)
        return reporting(0)(body)

    async def play() -> None:
        async with ranks({"train": train}) as (client, _), asyncio.TaskGroup() as tasks:
            training = tasks.create_task(client.train(0, shards()[:1]))
            await asyncio.sleep(0.05)
            assert await client.complete({"loss": "step-1"}) == Path("step-1")
            assert not training.done()
            go_on.set()

    asyncio.run(play())


@pytest.mark.parametrize("moves", [True, False])
def test_a_rank_counts_as_heard_while_it_makes_progress(moves, monkeypatch):
    monkeypatch.setattr(module, "_BEAT_S", 0.01)
    go_on, passes = threading.Event(), iter(range(10**6))

    def train(body: bytes) -> bytes:
        assert go_on.wait(60)
        return reporting(0)(body)

    async def play() -> None:
        count = (lambda: next(passes)) if moves else (lambda: 0.0)
        async with ranks({"train": train}, passes=count) as (client, _):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(client.train(0, shards()[:1]))
                await asyncio.sleep(0.1)
                begun_s = client.progress_s
                client.progress_s = 0.0
                if moves:
                    await until(lambda: client.progress_s > begun_s)
                else:
                    await asyncio.sleep(0.3)
                    assert client.progress_s == 0.0
                go_on.set()
            assert client.progress_s > begun_s

    asyncio.run(play())


def test_a_rank_without_a_command_does_not_hide_another_whose_command_hangs(monkeypatch):
    monkeypatch.setattr(module, "_IDLE_S", 0.02)
    go_on = threading.Event()

    def publish(body: bytes) -> Published:
        assert go_on.wait(60)
        return Published(0.0, 0.0, {}, {})

    async def play() -> None:
        async with ranks({"publish": publish}, {}) as (client, _), asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(client.publish(3, {}, 5.0))
            await asyncio.sleep(0.05)
            begun_s = client.progress_s
            await asyncio.sleep(0.2)
            assert client.progress_s == begun_s
            go_on.set()
            await publishing
            progress_s = client.progress_s
            await until(lambda: client.progress_s > progress_s)

    asyncio.run(play())


def test_ranks_count_as_heard_while_a_checkpoint_is_completed_and_no_batch_is_there(monkeypatch):
    monkeypatch.setattr(module, "_IDLE_S", 0.02)
    done: Future[Path | None] = Future()

    async def play() -> None:
        async with ranks({}, complete=lambda _: done) as (client, _), asyncio.TaskGroup() as tasks:
            completing = tasks.create_task(client.complete({}))
            await asyncio.sleep(0.1)
            client.progress_s = 0.0
            await asyncio.sleep(0.2)
            assert client.progress_s > 0
            assert not completing.done()
            done.set_result(None)

    asyncio.run(play())


@cases("error", [Final("batch 0 cannot be trained: inf"), WeightsError("no space"), KeyError("x")])
def test_an_error_of_a_command_is_reported_and_ends_the_rank(error):
    def train(body: bytes) -> bytes:
        raise error

    async def play() -> None:
        async with ranks({"train": train}) as (client, (rank,)):
            with pytest.raises(TrainerError) as failed:
                await client.train(0, shards()[:1])
            assert isinstance(failed.value, RanksFailed) == (not isinstance(error, Final))
            assert str(error) in str(failed.value)
            await asyncio.to_thread(rank.join, 60)
            assert rank.error is error

    asyncio.run(play())


@cases("error", [OSError(28, "No space left on device"), TimeoutError(), MemoryError()])
def test_a_checkpoint_that_cannot_be_completed_is_a_failure_of_the_ranks(error):
    def complete(metrics):
        done: Future[Path | None] = Future()
        done.set_exception(error)
        return done

    async def play() -> None:
        async with ranks({}, complete=complete) as (client, _):
            with pytest.raises(RanksFailed, match=re.escape(str(error) or repr(error))):
                await client.complete({})

    asyncio.run(play())


def test_a_rank_without_work_ends_once_it_is_replaced(monkeypatch):
    monkeypatch.setattr(module, "_IDLE_S", 0.02)

    async def play() -> None:
        async with ranks({}) as (client, (rank,)):
            progress_s = client.progress_s
            await until(lambda: client.progress_s > progress_s)
            client.revoke()
            await asyncio.to_thread(rank.join, 60)
            assert "POST /current: HTTP 401: unknown token" in str(rank.error)

    asyncio.run(play())


def test_a_rank_without_a_controller_ends_at_once():
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(TrainerError, match=f"{url}.*ConnectionRefused"):
        Controller(url, "").ready(0, "http://here", version=None)
    assert time.monotonic() - start < 30


@cases(
    "path, token, body, status",
    [
        ("/ready", "", b'{"rank": 9, "url": "http://u", "version": null, "build": ""}', 400),
        ("/ready", "", b"{", 400),
        ("/ready", "", b'{"rank": 0}', 400),
        ("/ready", "wrong", b'{"rank": 0, "url": "http://u", "version": null, "build": ""}', 401),
        ("/nowhere", "", b"", 404),
        ("/ready", "", b'{"rank": 0, "url": "no URL", "version": null, "build": ""}', 424),
        (
            "/ready",
            "",
            b'{"rank":0, "url": "http://127.0.0.1:1", "version":null, "build":""}',
            424,
        ),
        ("/current", "", b"{}", 200),
        ("/current", "wrong", b"{}", 401),
    ],
)
def test_requests_of_ranks_are_checked(path, token, body, status):
    async def play() -> int:
        found = HttpRanks(1)
        async with serving(RanksApi(found), host="127.0.0.1", port=0) as url, HttpClient() as http:
            headers = {"Authorization": f"Bearer {token or found.token}"}
            try:
                reply = await http.call(url, "POST", path, body=body, headers=headers, timeout_s=9)
                return reply[0]
            finally:
                await found.close()

    assert asyncio.run(play()) == status


@pytest.mark.parametrize("way", ["closed", "dropped", "another's"])
def test_a_rank_that_cannot_be_reached_ends_with_what_to_do(way, monkeypatch):
    """As a firewall does it, which refuses connections or drops what is sent."""
    monkeypatch.setattr("agentgym_rl.controller.ranks._REACH_S", 0.3)

    async def play() -> None:
        client = HttpRanks(1)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with serving(RanksApi(client), host="127.0.0.1", port=0) as url:
                port = silent.getsockname()[1]
                where = {"closed": "http://127.0.0.1:1", "dropped": f"http://127.0.0.1:{port}"}
                there = where.get(way, url)
                controller = Controller(url, client.token)
                with pytest.raises(TrainerError) as refused:
                    await asyncio.to_thread(controller.ready, 0, there, version=None)
        await client.close()
        why = {"closed": "ClientConnectorError", "dropped": "no answer in 0.3 s"}
        assert f"trainer-0 serves at {there}, " in str(refused.value)
        assert f"cannot reach it: {why.get(way, 'HTTP 404')}" in str(refused.value)
        assert "Let that host connect to every port of the nodes of ranks" in str(refused.value)

    asyncio.run(play())


@cases(
    "path, token, size, status",
    [
        ("/train", "", 0, 401),
        ("/stop", "wrong", 0, 401),
        ("/complete", "wrong", 0, 401),
        ("/here", "", 0, 401),
        ("/train", "", 1 << 40, 401),  # without reading a byte of it
        ("/nowhere", "right", 0, 404),
    ],
)
def test_strangers_do_not_command_a_rank(path, token, size, status):
    async def play() -> bytes:
        async with ranks({}) as (client, _):
            (url,) = client._urls.values()
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[-1]))
            sent = client.token if token == "right" else token
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
            writer.write(f"{head}Authorization: Bearer {sent}\r\n\r\n".encode())
            line = await reader.readline()
            writer.close()
            return line

    assert asyncio.run(play()).split()[1] == str(status).encode()


def test_a_rank_without_a_token_serves_nobody():
    async def play() -> int:
        server = RankServer(Controller("http://127.0.0.1:1", ""), passes=float, complete=folder)
        with server.served() as url:
            async with HttpClient() as http:
                headers = {"Authorization": "Bearer "}
                return (await http.call(url, "POST", "/stop", headers=headers, timeout_s=9))[0]

    assert asyncio.run(play()) == 401


def test_a_rank_that_cannot_serve_ends_with_the_reason(monkeypatch):
    def nowhere(urls: list[str]) -> str:
        raise OSError(f"no way to {urls}")

    monkeypatch.setattr(module, "own_address", nowhere)
    server = RankServer(Controller("http://there:1", "x"), passes=float, complete=folder)
    with pytest.raises(OSError, match=r"no way to .*http://there:1"), server.served():
        raise AssertionError


@pytest.mark.parametrize("other", [False, True])
def test_a_rank_with_other_code_than_the_run_is_no_secret(other, monkeypatch, caplog):
    if other:
        monkeypatch.setattr(module, "build", lambda: "0.0.9+abc")

    async def play() -> None:
        async with ranks({}):
            pass

    asyncio.run(play())
    said = "trainer-0 has the package in the build 0.0.9+abc, and this process has "
    assert [text.startswith(said) for text in caplog.messages] == [True] * other


def test_a_rank_whose_controller_has_an_address_of_ipv6():
    async def play() -> None:
        client = HttpRanks(1)
        async with serving(RanksApi(client), host="::1", port=0) as url:
            rank = Rank(Controller(url, client.token), 0, {}, float, folder)
            rank.start()
            await client.begun()
            assert client._urls[0].startswith("http://[::1]:")
            await client.stop()
            await asyncio.to_thread(rank.join, 60)
        await client.close()

    asyncio.run(play())


def test_a_command_with_a_wrong_token_is_refused():
    async def play() -> None:
        async with ranks({}) as (client, _):
            right = client.token
            client.revoke()
            with pytest.raises(RanksFailed, match="HTTP 401: unknown token"):
                await client.export()
            client.token = right

    asyncio.run(play())


@cases(
    "reply",
    [
        b"",  # it hangs up
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xc2\xc3",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n\xc2\x81\xa6result\x07",  # no report
        b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_rank_that_answers_nonsense_or_hangs_up_is_lost(reply):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    async def play() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = HttpRanks(1)
        port = server.sockets[0].getsockname()[1]
        client.join(0, f"http://127.0.0.1:{port}", first=None)
        async with asyncio.timeout(60), server:
            with pytest.raises(RanksFailed):
                await client.train(0, shards()[:1])
        await client.close()

    asyncio.run(play())


@cases("result", [None, 7, "text", [1, 2], {"seconds": "x"}, [["checkpoint", "soon", 2.0]]])
@cases("command", ["train", "publish", "checkpoint", "complete", "export", "stop"])
def test_a_rank_of_another_version_whose_results_do_not_fit_is_lost(command, result):
    right = {"complete": "text", "export": None, "stop": None}
    call = {
        "train": lambda client: client.train(0, shards()[:1]),
        "publish": lambda client: client.publish(1, {}, 5.0),
        "checkpoint": lambda client: client.checkpoint(1),
        "complete": lambda client: client.complete({}),
        "export": HttpRanks.export,
        "stop": HttpRanks.stop,
    }[command]

    async def other(scope, receive, send) -> None:
        await reply(send, 200, answer(result))

    async def play() -> None:
        client = HttpRanks(1)
        async with asyncio.timeout(60), serving(other, host="127.0.0.1", port=0) as url:
            client.join(0, url, first=None)
            fits = command in right and right[command] == result
            with nullcontext() if fits else pytest.raises(RanksFailed, match=r"trainer-0|batch 0"):
                await call(client)
        await client.close()

    asyncio.run(play())


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
    }


@cases("name", hostile())
def test_hostile_bytes_are_no_batch(name):
    with pytest.raises(ValueError, match="not a batch"):
        BatchShard.unpack(hostile()[name])
