"""A server in this process reads what clients send, and is closed however its context ends."""

import asyncio
import contextlib
import socket

import pytest
import uvloop

from agentgym_rl.runtime import read_body, serving
from agentgym_rl.runtime.http_server import reply
from tests.kit.cases import cases


async def app(scope, receive, send):
    await reply(send, 200, b"{}")


def test_a_server_is_closed_after_an_error():
    """Or else its loop, which closes when all its sockets are closed, never does."""
    urls = []

    async def fail():
        async with serving(app, host="127.0.0.1", port=0) as url:
            urls.append(url)
            raise KeyError("mine")

    loop = uvloop.new_event_loop()
    with pytest.raises(ExceptionGroup) as held:
        loop.run_until_complete(fail())
    assert held.group_contains(KeyError, match="mine")
    with pytest.raises(ConnectionRefusedError), socket.socket() as client:
        client.connect(("127.0.0.1", int(urls[0].rpartition(":")[2])))
    loop.close()


async def _echo(scope, receive, send):
    """Answer with the request; a path of /stream: in pieces, whose number is not said before."""
    body = await read_body(receive, limit_bytes=1_000_000)
    text = b"%s[%b]" % (scope["path"].encode(), body)
    if scope["path"] != "/stream":
        return await reply(send, 200, text)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece, more in ((text, True), (b".", False)):
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _answers(*packets, until=b"", app=_echo):
    """Return all that a server sends to `packets`, up to its closing; it sends `until` between."""

    async def talk():
        async with serving(app, host="127.0.0.1", port=0) as url, asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
            got = b""
            with contextlib.closing(writer), contextlib.suppress(ConnectionResetError):
                for packet in packets:
                    writer.write(packet)
                    await writer.drain()
                    got += await reader.readuntil(until) if until and not got else b""
                got += await reader.read()
            return got

    return asyncio.run(talk())


_END = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
_H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
_OFFERS = {
    "none": b"",
    "of Java and curl": _H2C,
    "of a websocket": b"connection: keep-alive, Upgrade\r\nUPGRADE: websocket\r\n",
    "of several": b"Connection: upgrade\r\nUpgrade: TLS/1.0, mine/2\r\nConnection: x\r\n",
    "without the option": b"Upgrade: h2c\r\n",
}
_SIZED, _CHUNKED = b"Content-Length: 5\r\n\r\nhello", b"\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"


def _post(path, head, body=_SIZED, version=b"1.1"):
    coded = b"" if body is _SIZED else b"Transfer-Encoding: chunked\r\n"
    return b"POST %b HTTP/%b\r\nHost: a\r\n%b%b%b" % (path, version, head, coded, body)


@cases("offer", _OFFERS)
@cases("body", [_SIZED, _CHUNKED], ids=["sized", "chunked"])
def test_an_offer_of_another_protocol_is_ignored(offer, body):
    request = _post(b"/a", _OFFERS[offer], body)
    got = _answers(request + request, request + _END)
    assert got.count(b"HTTP/1.1 200 OK") == 4
    assert got.count(b"/a[hello]") == 3
    assert got.endswith(b"/last[]")


def test_an_offer_may_arrive_in_pieces():
    got = _answers(*(bytes([byte]) for byte in _post(b"/a", _H2C) + _END))
    assert b"/a[hello]" in got
    assert got.endswith(b"/last[]")


def test_an_offer_may_wait_for_the_server_before_its_body():
    head, body = _post(b"/a", b"Expect: 100-continue\r\n" + _H2C)[:-5], b"hello"
    got = _answers(head, body + _END, until=b"\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    assert b"/a[hello]" in got


@cases("offer", _OFFERS)
def test_a_client_of_http_1_0_gets_neither_chunks_nor_continue(offer):
    head = b"Expect: 100-continue\r\n" + _OFFERS[offer]
    got = _answers(_post(b"/stream", head, version=b"1.0"))
    headers, _, body = got.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 200 OK")
    assert b"chunked" not in headers
    assert body == b"/stream[hello]."


def test_a_newer_client_gets_chunks():
    got = _answers(_post(b"/stream", b"") + _END)
    assert b"\r\n\r\ne\r\n/stream[hello]\r\n1\r\n.\r\n0\r\n\r\n" in got


@cases(
    "request",
    [
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        _post(b"/a", _H2C + b"Content-Length: 5\r\n", _CHUNKED),
    ],
    ids=["a tunnel", "HTTP/2 at once", "two lengths"],
)
def test_what_is_no_request_is_refused(request):
    got = _answers(request)
    assert got.startswith(b"HTTP/1.1 400")
    assert got.count(b"HTTP/1.1") == 1


_LONG = b"a" * 700_000
_TRAILERS = b"Transfer-Encoding: chunked\r\n\r\n"
_BESIDE = {
    "a path": b"GET /" + _LONG,
    "a header": b"GET / HTTP/1.1\r\nA: " + _LONG,
    "headers": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 120_000,
    "an offer": b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nA: " + _LONG,
    "behind a request": _post(b"/a", b"") + b"GET / HTTP/1.1\r\nA: " + _LONG,
    "a trailer": b"POST /a HTTP/1.1\r\n" + _TRAILERS + b"0\r\nA: " + _LONG,
    "trailers": b"POST /a HTTP/1.1\r\n" + _TRAILERS + b"0\r\n" + b"A: b\r\n" * 120_000,
    "a chunk's extension": b"POST /a HTTP/1.1\r\n" + _TRAILERS + b"5;" + _LONG,
}


@cases("what", _BESIDE)
def test_what_is_read_beside_bodies_has_a_bound(what):
    """The request never ends: without a bound, there would be no answer and no end."""
    sent = _BESIDE[what]
    got = _answers(*(sent[start : start + 50_000] for start in range(0, len(sent), 50_000)))
    assert got.count(b"HTTP/1.1 200 OK") <= (what == "behind a request")


def test_headers_that_are_too_long_are_named():
    got = _answers(b"GET / HTTP/1.1\r\nA: ".ljust((64 << 10) + 1, b"a"))
    assert got.startswith(b"HTTP/1.1 400")
    assert got.endswith(b"The headers are too long: at most 65536 bytes are read.")


def test_a_trailer_is_no_header():
    seen = []

    async def app(scope, receive, send):
        await read_body(receive, limit_bytes=10)
        seen.extend(name for name, _ in scope["headers"])
        await reply(send, 200)

    body = b"2\r\nhi\r\n0\r\nX-Arl-Lineage: untrained\r\n\r\n"
    got = _answers(b"POST / HTTP/1.1\r\n" + _TRAILERS + body + _END, app=app)
    assert got.count(b"HTTP/1.1 200 OK") == 2
    assert seen == [b"transfer-encoding", b"host", b"connection"]


def test_a_large_body_and_long_headers_are_read():
    head = b"A: " + b"a" * 60_000 + b"\r\nContent-Length: 900000\r\n\r\n"
    got = _answers(b"POST /stream HTTP/1.1\r\n" + head + b"b" * 900_000, _END)
    assert got.count(b"HTTP/1.1 200 OK") == 2
