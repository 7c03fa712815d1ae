"""The parts of messages that a text model cannot read, in any API: a short text in their place.

    an image        [image 640×480], its size read from the first bytes of the data; or [image]
    a document      [document report.pdf], or [document]
    audio, video    [audio], [video]

The text is the same each time a client sends the part, so a conversation goes on. The message also
keeps a hash and the size of what was left out (`LEFT_OUT`), for readers of the log. Documents that
are text are read.

All readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from agentgym_rl.core import is_dict, is_list
from agentgym_rl.gateway.errors import bad_request

Unreadable = Literal["placeholder", "refuse"]

LEFT_OUT = "left_out"
"""The field of a chat message that describes its parts that were left out."""
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio", "output_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("document", "file", "input_file", "container_upload"), "document"),
}
"""The medium that a part shows, by the part's type."""
_NESTED = ("source", "image_url", "input_audio", "audio_url", "video_url", "file")
"""The fields that hold the source of a part, as an object or as a URL."""
_DATA = ("data", "file_data", "image_data")
_PLACES = ("url", "image_url", "file_url", "file_id", "audio_url", "video_url", "id")
"""The fields with the place of a part whose data is not in the request."""
_NAMES = ("title", "filename", "name")
_DATA_URL = re.compile(r"data:[^,]{0,200},")
_HEAD = 65_536
"""The characters of base64 that are searched for the size of an image: JPEGs have theirs behind
thumbnails and profiles."""
_LONGEST_NAME = 100
_LONGEST_PLACE = 500
_LARGEST = 1_000_000
"""The largest width or height that is accepted."""

LeftOut = dict[str, Any]
Part = Mapping[str, Any]


class PartReader:
    """A reader of the parts of one message's content; `left_out` describes what it could not read.

    `refuses`: parts that are no text are a 400 (`gateway.unreadable`).
    """

    def __init__(self, unreadable: Unreadable) -> None:
        self._refuses = unreadable == "refuse"
        self.left_out: list[LeftOut] = []

    def text(self, part: Any, where: str) -> str | None:
        """Return the text in place of a part that is no text; None if its type is unknown."""
        kind = part.get("type") if is_dict(part) else None
        if not isinstance(kind, str):
            return None
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            return part["refusal"]
        if kind == "tool_reference":
            return f"[tool {_short(part.get('tool_name'))}]"
        shown = _KINDS.get(kind)
        if shown is None and kind != "search_result":
            return None
        if (read := self._document(part, where)) is not None:
            return read
        if self._refuses:
            raise bad_request(
                f"{where}: got a part of type {kind!r}, allowed: text; images and other media are "
                "not shown to the model: leave them out, or set gateway.unreadable to "
                "'placeholder', which puts a short text in their place",
                param=where,
            )
        found = _left_out(part, shown or "document")
        self.left_out.append(found)
        return found["text"]

    def described(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with the description of its parts that were left out, if any were."""
        return {**message, LEFT_OUT: self.left_out} if self.left_out else message

    def _document(self, part: Part, where: str) -> str | None:
        """Return the text of a document that is text: Anthropic's `text` and `content` sources, and
        results of searches; None for other parts."""
        source = part.get("source")
        if part["type"] == "search_result":
            parts, heads = part.get("content"), (part.get("title"), source)
        elif part["type"] == "document" and is_dict(source):
            held = {"text": "data", "content": "content"}.get(str(source.get("type")))
            if held is None:
                return None
            parts, heads = source.get(held), (part.get("title"), part.get("context"))
        else:
            return None
        titles = [head for head in heads if isinstance(head, str) and head]
        return "\n".join([*titles, *self._texts(parts, where)])

    def _texts(self, parts: Any, where: str) -> Iterable[str]:
        if isinstance(parts, str):
            return [parts]
        found = list[str]()
        for part in parts if is_list(parts) else ():
            kind = part.get("type") if is_dict(part) else None
            if kind == "text" and isinstance(part.get("text"), str):
                found.append(part["text"])
            elif isinstance(kind, str) and kind in _KINDS and kind != "document":
                found.append(self.text(part, where) or "")
            else:
                raise bad_request(f"{where}: got {part!r:.60} in a document, allowed: text and "
                                  "images", param=where)  # fmt: skip
        return found


def left_out_of(messages: Sequence[Mapping[str, Any]]) -> Iterable[LeftOut]:
    """Return the descriptions of all parts of a conversation that were left out."""
    return [found for m in messages if LEFT_OUT in m for found in m[LEFT_OUT] or ()]


def _left_out(part: Part, shown: str) -> LeftOut:
    """Describe a part: the text in its place, and the hash and size of what it was."""
    holders = [part, *(part[name] for name in _NESTED if is_dict(part.get(name)))]
    fields = [(name, holder[name]) for holder in holders for name in holder]
    given = {name: value for name, value in fields if isinstance(value, str) and value}
    place = next((given[name] for name in _PLACES if name in given), "")
    data = next((given[name] for name in _DATA if name in given), "")
    if found := _DATA_URL.match(data or place):
        data = (data or place)[found.end() :]
    text = shown
    if shown == "image" and (size := image_size(data)):
        text = f"image {size[0]}×{size[1]}"
    name = next((given[name] for name in _NAMES if name in given), "")
    if shown == "document" and name:
        text = f"document {_short(name)}"
    content = _decoded(data) if data else place.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(content).hexdigest()
    described = {"text": f"[{text}]", "sha256": digest, "size_bytes": len(content)}
    return described if data or not place else {**described, "from": place[:_LONGEST_PLACE]}


def _short(name: Any) -> str:
    """Return a name on one line, cut to a short length."""
    line = " ".join(str(name).replace("[", "(").replace("]", ")").split())
    return line if len(line) <= _LONGEST_NAME else f"{line[:_LONGEST_NAME]}…"


def _decoded(data: str) -> bytes:
    """Return the bytes in base64; those of the text itself if it is not base64."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return data.encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------------- the sizes of images


def image_size(data: str) -> tuple[int, int] | None:
    """Return width and height from the header of a PNG, JPEG, GIF or WebP in base64; None if it has
    none, or a nonsensical one. Only its first bytes are looked at."""
    head = data[: _HEAD - _HEAD % 4].strip()
    try:
        found = _size(base64.b64decode(head[: len(head) - len(head) % 4]))
    except (binascii.Error, ValueError, struct.error, IndexError):
        return None
    return found if found and all(0 < length <= _LARGEST for length in found) else None


def _size(head: bytes) -> tuple[int, int] | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
        return struct.unpack(">II", head[16:24])
    if head.startswith((b"GIF87a", b"GIF89a")):
        return struct.unpack("<HH", head[6:10])
    if head.startswith(b"\xff\xd8"):
        return _size_of_jpeg(head)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _size_of_webp(head[12:16], head[20:])
    return None


def _size_of_jpeg(head: bytes) -> tuple[int, int] | None:
    """Follow the segments up to the frame's, which has the size."""
    at = 2
    while head[at] == 0xFF:
        kind = head[at + 1]
        if kind == 0xFF:  # padding
            at += 1
            continue
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        alone = kind == 0x01 or 0xD0 <= kind <= 0xD8
        at += 2 if alone else 2 + max(struct.unpack(">H", head[at + 2 : at + 4])[0], 2)
    return None


def _size_of_webp(kind: bytes, chunk: bytes) -> tuple[int, int] | None:
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", chunk[6:10])
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        bits = struct.unpack("<I", chunk[1:5])[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        width, height = (int.from_bytes(chunk[at : at + 3], "little") for at in (4, 7))
        return width + 1, height + 1
    return None
