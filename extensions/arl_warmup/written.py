"""The tokens of a conversation as its chat template writes it, and the parts that the template does
not write.

Templates drop what they have no place for: calls, text next to calls, thoughts of earlier turns. A
reply that is written only in part would be learned in that form. Every reply is therefore rendered
a second time with marks in place of its text, thoughts, names and arguments: missing calls and
missing texts are refused, other missing parts counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from arl_parsers.calls_in_text import calls_of, has_call, has_tagged_call

from agentgym_rl.core import is_dict
from agentgym_rl.gateway import ChatFormat, ParserFactory, thoughts_of, without_thoughts
from agentgym_rl.gateway.messages import REASONING, text_of
from agentgym_rl.gym.data import check_text

from .demonstrations import Demonstration, Notes

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None
TokenRow = tuple[list[int], list[bool]]
"""The token ids, and whether each is a token of the assistant that is learned."""

_SURE = 12
"""The number of characters from which a text that is found is not a coincidence."""
_NOISE = str.maketrans("", "", "\\\"'`")
"""The characters that templates add and remove as they quote."""
_TAG = re.compile(r"\s*(<[^<>\s/]{1,40}>)")
_FIELDS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", *REASONING}
)
"""The fields of messages that are read."""


def rows_of(
    chat: ChatFormat,
    messages: Sequence[Message],
    tools: Tools,
    *,
    learns: Sequence[bool] | None = None,
    notes: Notes | None = None,
) -> list[TokenRow]:
    """Return the conversation as rows in which each turn of the assistant occurs once.

    A turn is appended to the row before it if its prompt begins with exactly those tokens, which is
    so with most chat templates; if the template rewrites history (for example, drops thoughts), the
    turn begins a new row. A reply that `learns` excludes, or that is empty, is only context.
    `notes` counts the parts that the template leaves out.

    Raises:
        ValueError: there is no reply to learn, or the template refuses the messages, renders a turn
            differently from its opening, or does not write the calls or the text of a reply.
    """
    notes = notes or Notes()
    rows: list[TokenRow] = []
    last: Message = {}
    learned = False
    for at, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        opened = chat.render(messages[:at], tools)
        prompt, reply = chat.encode(opened), _reply(chat, opened, messages[: at + 1], tools, notes)
        if not rows or prompt[: len(rows[-1][0])] != rows[-1][0]:
            _stop(chat, rows, last, learned)
            rows.append(([], []))
        ids, said = rows[-1]
        new = prompt[len(ids) :]
        # a token that opens the next turn is sampled to stop
        said += [
            learned and n == 0 < len(ids) and id in chat.opener_ids for n, id in enumerate(new)
        ]
        last, learned = message, _is_learned(message, learns is None or learns[at], notes)
        said += [learned] * len(reply)
        ids += new + reply
    if not rows:
        raise ValueError("no message of the assistant")
    _stop(chat, rows, last, learned)
    if not any(any(said) for _, said in rows):
        raise ValueError("no reply to learn: all are empty, or have a weight of 0")
    _note_prompt(chat, messages, tools, notes)
    return [row for row in rows if any(row[1])]


def _stop(chat: ChatFormat, rows: Sequence[TokenRow], last: Message, learned: bool) -> None:
    """Add the opening of a user's turn, which is sampled to end an answer that no token closes."""
    if rows and learned and not last.get("tool_calls") and chat.opener_ids:
        rows[-1][0].append(chat.stop_token_ids[0])
        rows[-1][1].append(True)


def _is_learned(message: Message, wanted: bool, notes: Notes) -> bool:
    if not wanted:
        return False
    if any(piece.text.strip() for piece in _pieces(message)):
        return True
    notes.add("empty reply, not learned")
    return False


def _reply(
    chat: ChatFormat, opened: str, messages: Sequence[Message], tools: Tools, notes: Notes
) -> list[int]:
    """Return the tokens of the last message, up to the token that ends it."""
    whole = check_text(chat.render(messages, tools, add_generation_prompt=False), "a message")
    if not whole.startswith(opened):
        raise ValueError(
            "the chat template renders an assistant's turn with another start than its "
            f"generation prompt: {whole[-120:]!r} does not begin with {opened[-40:]!r}"
        )
    close = chat.close_of(messages[-1])
    end = "" if close is None else chat.text([close])
    _check_written(chat, messages, tools, _Written(opened, whole, end), notes)
    ids = chat.encode(whole[len(opened) :])
    if close is None:
        return ids
    if close not in ids:  # some templates close a turn only when another follows
        return [*ids, close]
    return ids[: ids.index(close) + 1]


# ------------------------------------------------------------------ what is written
Kind = Literal["text", "thoughts", "name", "arguments"]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a reply, and the mark that takes its place in the second rendering."""

    kind: Kind
    text: str
    mark: str
    forms: Sequence[str] = ()
    """The ways to write it, besides the text itself."""

    def is_in(self, bare: str, *, sure: bool = False) -> bool:
        """Return whether some form of it is in `bare`; `sure`: and is too long for a
        coincidence."""
        found = [form for form in map(_bare, (self.text, *self.forms)) if form in bare]
        return any(len(form) >= _SURE for form in found) if sure else bool(found)


def _bare(text: str) -> str:
    """Return a text without spacing, quotes and backslashes."""
    return "".join(text.translate(_NOISE).split())


def _pieces(message: Message) -> Iterator[_Piece]:
    """Yield the parts of a reply that are not empty."""
    text = without_thoughts(text_of(message.get("content"))).strip()
    thoughts = thoughts_of(message)
    if text:
        yield _Piece("text", text, "qxzfwtextjq", (_escaped(text),))
    if thoughts:
        yield _Piece("thoughts", thoughts, "qxzfwthoughtjq", (_escaped(thoughts),))
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield _Piece("name", function["name"], f"qxzfw{number}namejq")
        for at, value in enumerate(_values(function.get("arguments"))):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            forms = (_escaped(text), repr(value))
            yield _Piece("arguments", text, _mark(number, at), forms)


def _mark(call: int, argument: int) -> str:
    return f"qxzfw{call}c{argument}argjq"


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _values(arguments: Any) -> list[Any]:
    """Return the values of a call's arguments; a malformed text is one value."""
    found = _object(arguments)
    if found is None:
        return [arguments] if isinstance(arguments, str) and arguments.strip() else []
    return list(found.values())


def _object(arguments: Any) -> dict[str, Any] | None:
    if is_dict(arguments):
        return arguments
    try:
        found = json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return None
    return found if is_dict(found) else None


def _marked(message: Message) -> Message:
    """Return a reply with marks in place of its pieces."""
    marks = {piece.kind: piece.mark for piece in _pieces(message)}
    marked = dict(message)
    content = text_of(message.get("content"))
    head = content[: len(content) - len(without_thoughts(content))]
    named = {name: marks.get("thoughts", "") for name in REASONING if message.get(name)}
    if head and not named and "thoughts" in marks:
        head = head.replace(thoughts_of(message), marks["thoughts"], 1)
    if content:
        marked["content"] = head + (marks["text"] if "text" in marks else content[len(head) :])
    marked |= named
    if calls := message.get("tool_calls"):
        marked["tool_calls"] = [_marked_call(call, n) for n, call in enumerate(calls)]
    return marked


def _marked_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = dict(call["function"])
    function["name"] = f"qxzfw{number}namejq"
    found = _object(function.get("arguments"))
    if found is not None:
        values = {key: _mark(number, at) for at, key in enumerate(found)}
        is_text = isinstance(function["arguments"], str)
        function["arguments"] = json.dumps(values, ensure_ascii=False) if is_text else values
    return {**call, "function": function}


@dataclass(frozen=True, slots=True)
class _Written:
    """A rendered conversation whose last message is a reply."""

    opened: str
    """The conversation before the reply."""
    whole: str
    end: str
    """The text of the token that ends the reply; "": no token does."""

    @property
    def reply(self) -> str:
        """Return the reply, as far as it is learned."""
        said = self.whole.removeprefix(self.opened)
        return said.partition(self.end)[0] if self.end else said


def _check_written(
    chat: ChatFormat, messages: Sequence[Message], tools: Tools, written: _Written, notes: Notes
) -> None:
    """Compare a reply with its rendered text.

    Raises:
        ValueError: a call, or a text without calls, is not written.
    """
    message = messages[-1]
    pieces = list(_pieces(message))
    if not pieces:
        return
    if written.end and any(written.end in piece.text for piece in pieces):
        raise ValueError(
            f"a reply holds {written.end!r}, the token that ends a turn: what follows it could not "
            "be learned; leave it out of the content"
        )
    try:
        marked = [*messages[:-1], _marked(message)]
        whole = chat.render(marked, tools, add_generation_prompt=False)
        shown = replace(written, whole=whole).reply
    except ValueError:  # the template looks something up, such as a name among the tools
        shown = None
    bare = _bare(written.reply)
    missing = [piece for piece in pieces if not _is_written(piece, shown, bare)]
    for piece in missing:
        if piece.kind in ("name", "arguments"):
            what = "call" if piece.kind == "name" else "argument of a call"
            raise ValueError(
                f"the chat template does not write the {what} {piece.text!r:.60} into the "
                "assistant's turn, so another reply would be learned: use a model (or "
                "gateway.chat_template) whose template writes calls, or write the call into the "
                "content, as the model is to say it"
            )
        if piece.kind == "text" and not message.get("tool_calls"):
            raise ValueError(
                f"the chat template does not write the assistant's text {piece.text!r:.60}, so "
                "another reply would be learned"
            )
        notes.add(
            "reply whose text next to calls is not learned: the chat template does not write it"
            if piece.kind == "text"
            else "reply whose thoughts are not learned: the chat template does not write them"
        )
    if not bare:
        raise ValueError(
            "the chat template writes nothing of the assistant's turn, so an empty reply would be "
            "learned"
        )
    for piece in pieces:
        if piece not in missing and piece.kind in ("text", "thoughts") and not piece.is_in(bare):
            notes.add(f"reply whose {piece.kind} the chat template changes")
    _note_twice(message, written, notes)


def _note_twice(message: Message, written: _Written, notes: Notes) -> None:
    """Note the parts that a reply repeats: the tag that its prompt ends with, or its calls."""
    tag = _TAG.match(written.reply)
    if tag and written.opened.rstrip().endswith(tag[1]):
        notes.add(f"reply that begins with {tag[1]}, with which its prompt ends already")
    names = {call["function"]["name"] for call in message.get("tool_calls") or ()}
    if names and has_call(without_thoughts(text_of(message.get("content"))), names):
        notes.add("reply with a call in its text and the same in `tool_calls`; both are learned")


def note_unread_calls(said: Demonstration, parsers: ParserFactory, notes: Notes) -> None:
    """Note the learned replies with a call in their text that the model's parser does not read:
    in another model's notation it is a text like any other. `parsers`: of this model's replies."""
    names = {tool["function"]["name"] for tool in said.tools or ()}
    for message, learned in zip(said.messages, said.learns, strict=True):
        if not learned or message["role"] != "assistant" or message.get("tool_calls"):
            continue
        text = without_thoughts(text_of(message.get("content")))
        if names and not any(name in text for name in names):
            continue
        if any(not call.malformed for call in calls_of(parsers(said.tools or (), ""), text)):
            continue
        if has_call(text, names) if names else has_tagged_call(text):
            notes.add(
                "reply with a tool call in its text that is not in this model's notation, and is "
                "learned as plain text: give the call in `tool_calls`, which the chat template "
                "writes as the model is to say it",
                text.strip(),
            )


def _is_written(piece: _Piece, shown: str | None, bare: str) -> bool:
    if shown is None:
        return piece.is_in(bare)
    return piece.mark in shown or piece.is_in(bare, sure=True)


def _note_prompt(chat: ChatFormat, messages: Sequence[Message], tools: Tools, notes: Notes) -> None:
    """Note the parts of other messages than the assistant's that the template leaves out or
    moves."""
    end = max(at for at, message in enumerate(messages) if message.get("role") == "assistant")
    before = messages[:end]
    if not before:
        return
    rendered = chat.unmarked(chat.render(before, tools))
    bare = _bare(rendered)
    for message in before:
        text, role = text_of(message.get("content")), message["role"]
        if role == "assistant":
            continue
        tag = _TAG.match(text)
        if tag and re.search(rf"{re.escape(tag[1])}\s*{re.escape(tag[1])}", rendered):
            notes.add(
                f"message of the role {role} that begins with {tag[1]}, which the chat template "
                "writes besides: leave it out of the content"
            )
        if not any(_bare(form) in bare for form in (text, _escaped(text))):
            notes.add(f"message of the role {role} that the chat template leaves out or changes")
        if role != "tool" and (name := message.get("name")) and _bare(str(name)) not in bare:
            notes.add(f"`name` of a message of the role {role}, which the template does not write")
    if chat.moves_systems(before, tools):
        notes.add("row whose system messages are merged into one, at its front")
    _note_tools(chat, messages, tools, notes)
    _note_fields(chat, messages, notes)


def _note_fields(chat: ChatFormat, messages: Sequence[Message], notes: Notes) -> None:
    """Note the fields of messages that nothing reads, not even the chat template."""
    templates = (chat.template, chat.template.tool_use)
    source = "".join(template.source for template in templates if template is not None)
    notes.fields |= {
        name
        for message in messages
        for name, value in message.items()
        if name not in _FIELDS and value not in (None, "", [], {}) and name not in source
    }


def _note_tools(chat: ChatFormat, messages: Sequence[Message], tools: Tools, notes: Notes) -> None:
    offered = {tool["function"]["name"] for tool in tools or ()}
    called = {
        call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()
    }
    if called - offered:
        notes.add("row that calls tools which it does not list in `tools`")
    if offered and chat.omits_tools:
        notes.add("row whose tools are in no prompt (gateway.hidden_tools)")
