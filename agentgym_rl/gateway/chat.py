"""Between chat messages and token ids, for one model: prompts, continuations, and text back.

Literal special tokens in what users and tools say ("<|im_end|>" printed by a program) become
ordinary text tokens, so that nothing but the chat template can open or close a turn. Everything
else tokenises as `transformers.apply_chat_template` does it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from agentgym_rl.errors import ConfigError

from .messages import text_of
from .template import ChatTemplate, read_json

_log = logging.getLogger(__name__)

_SENTINEL = "\ue000said\ue001"
"""Stands for what was sampled when a continuation is rendered."""
_BREAK = "\ue002break\ue003"
"""Put inside literal special tokens; the text is tokenised in pieces that end here."""
_OPENING: Mapping[str, Any] = {"role": "user", "content": "."}
_EARLIER: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": "Go on: h\u00e9llo"},
    {"role": "assistant", "content": "Well."},
    _OPENING,
)


class ChatFormat:
    """The chat format of one model folder.

    `close_id` ends an assistant turn in the template (None: the template has no such token);
    `stop_token_ids` end a reply. `bridges` says that a continuation can be rendered by itself
    and appended to the exact tokens sampled before; probed once, at load. Where it is False
    every turn renders the whole conversation anew and is a row of its own.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, eos_ids: Iterable[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        added = tokenizer.get_added_tokens_decoder()
        special = [re.escape(token.content) for token in added.values() if token.special]
        self._special = re.compile("|".join(special)) if special else None
        self._takes_strings = self._probe_arguments()
        self.close_id = self._probe_close(set(added))
        ends = [*eos_ids] if self.close_id is None else [self.close_id, *eos_ids]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))
        self.bridges = self.close_id is not None and self._probe_suffix()
        if not self.bridges:
            _log.warning("the chat template has no local turns: every turn becomes its own row")

    @classmethod
    def load(cls, folder: Path | str) -> ChatFormat:
        """Read tokenizer.json, the chat template and the end-of-turn ids of a model folder.

        Raises:
            ConfigError: a file is missing or cannot be read.
        """
        folder = Path(folder)
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception
            raise ConfigError(f"cannot read {folder / 'tokenizer.json'}: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        eos = read_json(folder / "generation_config.json").get("eos_token_id", [])
        ids = [eos] if isinstance(eos, int) else list(eos or [])
        name = read_json(folder / "tokenizer_config.json").get("eos_token")
        named = tokenizer.token_to_id(name["content"] if isinstance(name, dict) else name or "")
        return cls(tokenizer, ChatTemplate.load(folder), ids if named is None else [*ids, named])

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """The whole conversation, ready for the model's reply.

        Raises:
            ValueError: the template refuses these messages.
        """
        return self.encode(self.render(messages, tools))

    def suffix(
        self,
        reply: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[int]:
        """What follows the close of the sampled turn `reply`: `messages`, then the next opening.

        Of `reply` only the names and ids of its tool calls matter.

        Raises:
            ValueError: the template refuses these messages, or it has no local turns.
        """
        if self.close_id is None:
            raise ValueError("this chat template does not close assistant turns")
        return self.encode(self._suffix_text(reply, messages, tools, close=self._close))

    def text(self, ids: Sequence[int]) -> str:
        """Sampled tokens as text, special tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    @property
    def template(self) -> ChatTemplate:
        """What renders messages."""
        return self._template

    def encode(self, text: str) -> list[int]:
        """Text as the template writes it, special tokens included, to ids."""
        if _BREAK not in text:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        return [id for part in text.split(_BREAK) for id in self.encode(part)]

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> str:
        """What `prompt` encodes; literal special tokens of others carry a mark inside.

        Raises:
            ValueError: the template refuses these messages.
        """
        return self._template.render([self._plain(message) for message in messages], tools)

    @property
    def _close(self) -> str:
        assert self.close_id is not None
        return self._tokenizer.id_to_token(self.close_id) or ""

    def _plain(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message as templates want it: string content, parsed arguments, nothing forged."""
        role, content = message["role"], message.get("content")
        if not isinstance(content, str):
            message = {**message, "content": None if content is None else text_of(content)}
        if message.get("tool_calls") and not self._takes_strings:
            message = {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}
        text = message["content"]
        if role in ("user", "tool") and text and self._special and self._special.search(text):
            message = {**message, "content": self._special.sub(_broken, text)}
        return message

    def _suffix_text(
        self,
        reply: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        close: str,
    ) -> str:
        said: dict[str, Any] = {"role": "assistant", "content": _SENTINEL}
        if reply.get("tool_calls"):
            said["tool_calls"] = [_emptied(call, close) for call in reply["tool_calls"]]
        rendered = self.render([_OPENING, said, *messages], tools)
        _, found, after = rendered.partition(_SENTINEL)
        _, closed, rest = after.partition(close)
        if not (found and closed):
            raise ValueError("this chat template does not close assistant turns")
        return rest

    def _probe_arguments(self) -> bool:
        """Whether the template writes string arguments as they are (else it wants objects)."""
        arguments = '{"q":  "x"}'
        call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": arguments}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            return arguments in self._template.render([_OPENING, said])
        except ValueError:  # a template without tools, or one that insists on objects
            return False

    def _probe_close(self, added: set[int]) -> int | None:
        """The added token that ends an assistant turn, if one does."""
        said = {"role": "assistant", "content": _SENTINEL}
        try:
            rendered = self._template.render([_OPENING, said], add_generation_prompt=False)
        except ValueError:
            return None
        after = rendered.partition(_SENTINEL)[2]
        first = next(iter(self.encode(after)), None)
        return first if first in added else None

    def _probe_suffix(self) -> bool:
        """Whether a continuation rendered alone equals the tail of the whole conversation.

        Conversations the template refuses (tools, for one without) prove nothing; the plain one
        must work.
        """
        plain, *others = _probes()
        return self._is_local(*plain, refused=False) and all(
            self._is_local(said, new, refused=True) for said, new in others
        )

    def _is_local(
        self, said: Mapping[str, Any], new: Sequence[Mapping[str, Any]], *, refused: bool
    ) -> bool:
        tools = _PROBE_TOOLS if said.get("tool_calls") else None
        try:
            whole = self.render([*_EARLIER, said, *new], tools)
        except ValueError:
            return refused
        try:
            tail = self._suffix_text(said, new, tools, close=self._close)
        except ValueError:
            return False
        head = whole.removesuffix(tail)
        return (
            head != whole
            and head.endswith(self._close)
            and self.encode(head) + self.encode(tail) == self.encode(whole)
        )


class Detokenizer:
    """Text of a growing token sequence, in pieces that never split a character."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._ids: list[int] = []
        self._start = 0  # the window decoded anew: some decoders need left context
        self._done = 0  # tokens whose text has been given out

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain after `ids`."""
        self._ids += ids
        return self._more(last=False)

    def finish(self) -> str:
        """The rest, incomplete characters as U+FFFD."""
        return self._more(last=True)

    def _more(self, *, last: bool) -> str:
        known = self._chat.text(self._ids[self._start : self._done])
        text = self._chat.text(self._ids[self._start :])
        if text.endswith("\ufffd") and not last:
            return ""
        if len(text) > len(known):
            self._start, self._done = self._done, len(self._ids)
        return text[len(known) :]


_PROBE_TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
]


def _probes() -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    plain = {"role": "assistant", "content": "Yes\u00e9."}
    call = {"type": "function", "id": "call_0_0"}
    called = [{**call, "function": {"name": "f", "arguments": '{"q": "\u00e9"}'}}]
    says = {"role": "assistant", "content": "", "tool_calls": called}
    twice = [*called, {**call, "id": "call_0_1", "function": {"name": "f", "arguments": "{}"}}]
    answer = {"role": "tool", "tool_call_id": "call_0_0", "name": "f", "content": "12 \u2713\n"}
    other = {**answer, "tool_call_id": "call_0_1", "content": "error: x"}
    user = {"role": "user", "content": " more?"}
    return [
        (plain, [user]),
        (says, [answer]),
        ({**says, "content": "Wait", "tool_calls": twice}, [answer, other]),
    ]


def _parsed(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = dict(call["function"])
    try:
        function["arguments"] = msgspec.json.decode(function["arguments"])
    except (msgspec.DecodeError, TypeError, RecursionError):  # the template gets the text itself
        return call
    return {**call, "function": function}


def _emptied(call: Mapping[str, Any], close: str) -> dict[str, Any]:
    name = call["function"]["name"].replace(close, "")  # models name functions as they like
    return {"id": call.get("id"), "type": "function", "function": {"name": name, "arguments": "{}"}}


def _broken(literal: re.Match[str]) -> str:
    return literal[0][0] + _BREAK + literal[0][1:]
