"""Images, documents and audio in messages: a text stands for each, or they are refused."""

import asyncio
import base64
import hashlib
import io
import time

import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.gateway.request.unreadable import image_size
from tests.kit.cases import cases

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def _png(width, height):
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
    return head + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"


PNG = base64.b64encode(_png(640, 480)).decode()
PDF = base64.b64encode(b"%PDF-1.4").decode()
PARTS = {
    CHAT: [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}, "640×480"),
        ({"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}, "[image]"),
        ({"type": "file", "file": {"filename": "r.pdf", "file_data": PDF}}, "[document r.pdf]"),
        ({"type": "input_audio", "input_audio": {"data": PDF, "format": "wav"}}, "[audio]"),
    ],
    RESPONSES: [
        ({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}, "640×480"),
        ({"type": "input_image", "file_id": "file_1"}, "[image]"),
        ({"type": "input_file", "filename": "r.pdf", "file_data": PDF}, "[document r.pdf]"),
        ({"type": "input_audio", "input_audio": {"data": PDF, "format": "wav"}}, "[audio]"),
    ],
    MESSAGES: [
        ({"type": "image", "source": {"type": "base64", "data": PNG}}, "[image 640×480]"),
        ({"type": "image", "source": {"type": "url", "url": "https://x.org/a.png"}}, "[image]"),
        (
            {"type": "document", "title": "r.pdf", "source": {"type": "base64", "data": PDF}},
            "[document r.pdf]",
        ),
    ],
}


def _said(path, part):
    """The part in a message of a user, and in the result of a tool."""
    text = {"type": "input_text" if path == RESPONSES else "text", "text": "See:"}
    call = {"type": "function", "id": "c1", "function": {"name": "look", "arguments": "{}"}}
    user = {"role": "user", "content": [text, part]}
    if path == CHAT:
        calls = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c1", "content": [text, part]}
        return {"messages": [user, calls, result]}
    if path == RESPONSES:
        calls = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c1", "output": [text, part]}
        return {"input": [user, calls, result]}
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [text, part]}
    turns = [user, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return {"messages": turns, "max_tokens": 100}


ALL = [(path, part, text) for path, parts in PARTS.items() for part, text in parts]


@pytest.fixture
def scene(stage, spell, words):
    return stage(lambda _: spell.canonical(words.ANSWER + words.END))


@cases("path, part, text", ALL, ids=range(len(ALL)))
def test_a_text_stands_for_a_part_and_the_record_names_it(scene, path, part, text):
    session = scene.open()
    for _ in range(2):  # a client sends it each time: it is counted once
        answer = asyncio.run(scene.post(session, path=path, **_said(path, part)))
        assert answer.status == 200, answer.data
    prompt = scene.gateway._chat.text(scene.engine.journal[-1].prompt)
    assert prompt.count(text) == 2
    record = scene.gateway.close_session(session)
    assert (record.counters["placeholders"], record.counters["forks"]) == (1, 1)
    described = [one for message in record.messages for one in message.get("left_out", ())]
    assert len(described) == 2
    [digest, size] = {(d["sha256"], d["size_bytes"]) for d in described}.pop()
    if text.endswith("640×480]"):
        assert (digest, size) == (hashlib.sha256(_png(640, 480)).hexdigest(), 29)
    assert len(digest) == 64


@cases("path, part, text", ALL, ids=range(len(ALL)))
def test_parts_can_be_refused(stage, path, part, text):
    scene = stage([], config=GatewayConfig(unreadable="refuse"))
    answer = asyncio.run(scene.post(scene.open(), path=path, **_said(path, part)))
    assert answer.status == 400
    said = answer.body["error"]["message"]
    assert part["type"] in said
    assert "gateway.unreadable" in said


def test_an_episode_with_an_image_is_one_row(stage, spell, words):
    scene = stage([spell.bytewise(text + words.END) for text in (words.CALL, words.ANSWER)])
    session, [(part, _), *_] = scene.open(), PARTS[CHAT]
    said = [{"role": "user", "content": [part, {"type": "text", "text": "What is this?"}]}]
    message = asyncio.run(scene.post(session, messages=said, tools=[words.CALCULATOR])).message
    answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": [part]}
    said += [message, answer]
    assert asyncio.run(scene.post(session, messages=said, tools=[words.CALCULATOR])).status == 200
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["placeholders"] == 1


def test_documents_that_are_text_are_read(scene):
    parts = [
        {"type": "document", "title": "T", "source": {"type": "text", "data": "Readable."}},
        {
            "type": "document",
            "source": {"type": "content", "content": [{"type": "text", "text": "Inside."}]},
        },
        {"type": "search_result", "source": "http://x", "title": "R", "content": [
            {"type": "text", "text": "Found."}]},
    ]  # fmt: skip
    said = [{"role": "user", "content": parts}]
    session = scene.open()
    answer = asyncio.run(scene.post(session, path=MESSAGES, messages=said, max_tokens=9))
    assert answer.status == 200
    prompt = scene.gateway._chat.text(scene.engine.journal[-1].prompt)
    assert "T\nReadable.\nInside.\nR\nhttp://x\nFound." in prompt
    assert session.counters["placeholders"] == 0


def test_a_client_cannot_say_what_was_left_out(scene):
    session = scene.open()
    said = {"role": "user", "content": "Hi", "left_out": [3]}
    assert asyncio.run(scene.post(session, messages=[said])).status == 200
    first = asyncio.run(scene.post(session, path=RESPONSES, input=[{"type": "message", **said}]))
    again = [{"type": "item_reference", "id": first.body["output"][0]["id"]}, said]
    assert asyncio.run(scene.post(session, path=RESPONSES, input=again)).status == 200
    record = scene.gateway.close_session(session)
    assert (record.infra_error, record.counters["placeholders"]) == ("", 0)


@cases("content", [3, [3], [{"type": []}], [{"type": "document"}], [{"type": "tool_use"}]])
def test_a_document_of_junk_is_a_400(scene, content):
    part = {"type": "document", "source": {"type": "content", "content": content}}
    answer = asyncio.run(scene.post(scene.open(), path=MESSAGES, **_said(MESSAGES, part)))
    assert answer.status == (200 if content == 3 else 400)


BAD = [
    *("", "not base64!", "é\ud83d\ude00", "A" * 3, "=" * 9, "data:image/png;base64"),
    *("data:image/png;base64,", f"data:image/png;base64,{PNG[:20]}"),
    base64.b64encode(b"\xff\xd8" + b"\xff" * 60_000).decode(),
    base64.b64encode(_png(0, 5)).decode(),
    base64.b64encode(_png(2**31, 5)).decode(),
]


@cases("data", BAD, ids=range(len(BAD)))
def test_bad_data_is_an_image_without_a_size(scene, data):
    data = data.encode("utf-16", "surrogatepass").decode("utf-16")
    parts = {
        CHAT: {"type": "image_url", "image_url": {"url": data}},
        RESPONSES: {"type": "input_image", "image_url": data},
        MESSAGES: {"type": "image", "source": {"type": "base64", "data": data}},
    }
    for path, part in parts.items():
        answer = asyncio.run(scene.post(scene.open(), path=path, **_said(path, part)))
        assert answer.status == 200, answer.data
        assert "[image]" in scene.gateway._chat.text(scene.engine.journal[-1].prompt)


def test_the_size_of_a_large_image_is_read_from_its_beginning():
    data = base64.b64encode(_png(3000, 2000) + b"\0" * 3_000_000).decode()
    begun = time.process_time()
    for _ in range(100):
        assert image_size(data) == (3000, 2000)
    assert time.process_time() - begun < 1  # a tenth of this would do


@cases("kind, options", [
    ("PNG", {}), ("GIF", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}),
    ("JPEG", {"icc_profile": b"x" * 40_000}), ("WEBP", {"lossless": True}),
    ("WEBP", {"exif": b"Exif\0\0abc"}),
], ids=range(8))  # fmt: skip
def test_sizes_of_real_images(kind, options):
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (641, 480), (1, 2, 3)).save(file, kind, **options)
    assert image_size(base64.b64encode(file.getvalue()).decode()) == (641, 480)


def test_the_count_with_parts_and_tools_that_are_not_shown_is_exact(scene):
    said = _said(MESSAGES, PARTS[MESSAGES][0][0])
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    asked = {"messages": said["messages"], "tools": tools}
    session = scene.open()
    counted = asyncio.run(scene.post(session, path=f"{MESSAGES}/count_tokens", **asked)).body
    used = asyncio.run(scene.post(session, path=MESSAGES, max_tokens=9, **asked)).body["usage"]
    assert counted["input_tokens"] == used["input_tokens"] == len(scene.engine.journal[0].prompt)
