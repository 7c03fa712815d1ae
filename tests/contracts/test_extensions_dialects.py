"""Wire formats of other packages: the gateway serves and records their turns like its own."""

import asyncio
import json
import sys

import msgspec
import pytest

from agentgym_rl.cli import main as cli
from agentgym_rl.core import ConfigError, extensions
from tests.kit.extension import install
from tests.kit.stage import ANSWER, END, chat, check_exact, spell, stage

__all__ = ["chat", "spell", "stage"]

PARROT = '''
import msgspec

from agentgym_rl.gateway.dialects import Dialect, Resources, Writer
from agentgym_rl.gateway.dialects.formats import WireFormat
from agentgym_rl.gateway.errors import bad_request
from agentgym_rl.gateway.request.body import json_object
from agentgym_rl.gateway.request.chat_request import ChatRequest

class Said(list):
    """The texts of one session."""

class ParrotWriter(Writer):
    def __init__(self, session, turn):
        self.session, self.turn = session, turn
    def whole(self):
        self.session.state(Said).append(self.turn.message["content"])
        return msgspec.json.encode({"squawk": self.turn.message["content"]})
    def begin(self):
        return b"<"
    def events(self, turn, events):
        return "".join(event for event in events if isinstance(event, str)).encode()
    def end(self):
        return b">"

class Parrot(Dialect):
    path = "/v1/parrot"
    def read(self, session, body):
        given = json_object(body)
        if not given.get("text"):
            raise bad_request("text must not be empty", param="text")
        messages = [{"role": "user", "content": given["text"]}]
        return ChatRequest(messages=messages, stream=given.get("stream", False))
    def writer(self, session, request, turns, *, model):
        return ParrotWriter(session, turns[0])
    def error(self, error):
        return msgspec.json.encode({"croak": str(error)})

class Texts(Resources):
    path = "/v1/parrot-texts"
    operations = {"/v1/parrot-texts": ("GET",)}
    def serve(self, session, asked):
        return {"texts": session.state(Said)} if asked.method == "GET" else None

class ParrotFormat(WireFormat):
    """One text, repeated."""
    key_headers = ("parrot-key",)
    client_header = "parrot-version"
    def routes(self, served):
        return Parrot(), Texts()

class Taker(ParrotFormat):
    def routes(self, served):
        found = Parrot()
        found.path = "/v1/chat/completions"
        return (found,)

FORMAT, TAKER = ParrotFormat(), Taker()
'''


@pytest.fixture
def parrot(tmp_path, monkeypatch):
    """Installs the package with these dialects."""

    def installed(**points):
        folder = install(tmp_path / "theirs", {"theirs_parrot": PARROT}, {"dialects": points})
        monkeypatch.syspath_prepend(str(folder))

    yield installed
    sys.modules.pop("theirs_parrot", None)


@pytest.fixture
def reply(spell):
    return spell.canonical(ANSWER + END)


@pytest.fixture
def scene(parrot, stage, reply):
    parrot(parrot="theirs_parrot:FORMAT")
    return stage([reply] * 2)


def _send(scene, headers, path="/v1/parrot", method="POST", **fields):
    data = json.dumps(fields).encode() if fields else b""
    return asyncio.run(scene.request(method, path, data, headers))


@pytest.mark.parametrize("stream", [False, True])
def test_its_turn_is_answered_and_recorded_exactly(scene, stream):
    session = scene.open()
    answer = _send(scene, {"parrot-key": session.key}, text="What is 3*4?", stream=stream)
    assert answer.status == 200
    expected = f"<{ANSWER}>".encode() if stream else msgspec.json.encode({"squawk": ANSWER})
    assert answer.data == expected
    record = scene.gateway.close_session(session)
    check_exact(record.rows, scene.engine.journal)


def test_its_state_is_that_of_the_session(scene):
    first, second = scene.open(), scene.open()
    _send(scene, {"parrot-key": first.key}, text="Hello")
    kept = [
        _send(scene, {"parrot-key": one.key}, "/v1/parrot-texts", "GET").body["texts"]
        for one in (first, second)
    ]
    assert kept == [[ANSWER], []]


def test_its_errors_have_its_shape_wherever_its_clients_ask(scene):
    key = {"parrot-key": scene.open().key}
    refused = _send(scene, key, text="")
    assert (refused.status, refused.body) == (400, {"croak": "text must not be empty"})
    lost = _send(scene, {"parrot-version": "1"}, "/v1/nothing", "GET")
    assert lost.status == 404
    assert lost.body["croak"].startswith("No route GET /v1/nothing")
    assert _send(scene, {}, text="Hello").status == 401


def test_it_is_listed(parrot, capsys):
    parrot(parrot="theirs_parrot:FORMAT")
    with pytest.raises(SystemExit):
        cli.main(["list", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = [row for row in rows if row["kind"] == "dialect"]
    assert [(row["id"], row["description"]) for row in found] == [("parrot", "One text, repeated.")]


def test_a_path_has_one_owner(parrot, stage):
    parrot(taker="theirs_parrot:TAKER")
    with pytest.raises(ConfigError, match=r"completions and taker .* both serve /v1/chat/comp"):
        stage([])


def test_a_package_that_cannot_be_imported_is_no_obstacle(parrot, stage, reply, caplog):
    parrot(broken="theirs_broken:FORMAT")
    scene = stage([reply])
    assert "'broken' (theirs_broken:FORMAT) cannot be imported" in caplog.text
    answer = scene.post(scene.open(), messages=[{"role": "user", "content": "?"}])
    assert asyncio.run(answer).message["content"] == ANSWER


@pytest.fixture
def alone(monkeypatch):
    """The kernel without the extension of ours."""
    find = extensions.find_spec
    hidden = lambda name: None if name == "arl_dialects" else find(name)  # noqa: E731
    monkeypatch.setattr(extensions, "find_spec", hidden)
    extensions.forget_entry_points()
    yield
    monkeypatch.undo()
    extensions.forget_entry_points()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/conversations"])
def test_what_is_not_installed_is_named(alone, stage, path):
    scene = stage([])
    answer = asyncio.run(scene.post(scene.open(), path=path, input="Hello"))
    assert answer.status == 404
    assert answer.error["code"] == "not_found"
    assert answer.error["message"].endswith(
        "Not installed, with the package of each: messages (arl_dialects), "
        "responses (arl_dialects)."
    )


def test_chat_completions_need_no_extension(alone, stage, reply):
    scene = stage([reply])
    session = scene.open()
    answer = scene.post(session, messages=[{"role": "user", "content": "What is 3*4?"}])
    assert asyncio.run(answer).message["content"] == ANSWER
    check_exact(scene.gateway.close_session(session).rows, scene.engine.journal)
