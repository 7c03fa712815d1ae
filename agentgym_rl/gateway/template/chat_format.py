"""Between chat messages and token ids, for one model: prompts, continuations, and text back.

Literal special tokens in what users and tools say ("<|im_end|>" printed by a program) become
ordinary text tokens, so that nothing but the chat template can open or close a turn. Everything
else tokenises as `transformers.apply_chat_template` does it.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from agentgym_rl.core.errors import ConfigError

from .compat import Fitting
from .continuation import Render, by_count, by_sentinel
from .probe import Rung, Shape, find_shape
from .template import NO_KWARGS, RESERVED, ChatTemplate, read_json

_log = logging.getLogger(__name__)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts come one at a time

_BREAK = "\ue002break\ue003"
"""Put inside literal special tokens; the text is tokenised in pieces that end here."""
_LONG_IDS = 1_000
"""Decoding more takes longer than the detour that lets other threads run meanwhile."""
_DENSE = 4
"""Characters a token: a text of fewer for each token that has room is tokenised at once, of more
it is counted first whether it can fit."""
_BATCH = 10_000
_PIECE = 32_768
"""Characters that are counted at once."""
_PARTS = 2_000
"""Parts of a text that are tokenised at once: other threads wait while the results are freed."""
_SHAPES_KEPT = 64
"""Sets of template arguments whose shapes are remembered; a probe takes milliseconds."""


class TooLong(Exception):
    """A text has more tokens than it may have: at least `num_tokens`."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"the text has at least {num_tokens} tokens")
        self.num_tokens = num_tokens


class ChatFormat:
    """The chat format of one model folder.

    `rung` says how a turn is continued on the exact tokens sampled before (see `shape`); `why`,
    what ruled out the rungs above it. On the last rung, `full`, every turn renders the whole
    conversation anew and is a row of its own. `close_id` ends an assistant turn in the template
    (None: no token does, or the next turn's first token does, one of `opener_ids`);
    `stop_token_ids` end a reply.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, eos_ids: Iterable[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        added = tokenizer.get_added_tokens_decoder()
        special = [re.escape(token.content) for token in added.values() if token.special]
        self._special = re.compile("|".join(special)) if special else None
        self._added = {token.content: id for id, token in added.items()}
        self._shapes: dict[str, Shape] = {}
        self._probing = threading.Lock()
        self._fitting = Fitting.of(template)
        tooled = template.tool_use
        self._with_tools = (tooled, Fitting.of(tooled)) if tooled else (template, self._fitting)
        self._arguments = (template.variables | self._with_tools[0].variables) - RESERVED
        shape = self.shape()
        self.rung: Rung = shape.rung
        self.why = shape.why
        ends = [self._added[text] for text in shape.end.texts] if shape.end else []
        opens = shape.end is not None and shape.end.opens
        self.close_id = ends[0] if ends and not opens else None
        self.opener_ids = frozenset(ends if opens else ())
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*ends, *eos_ids]))
        self._log_rung()

    @property
    def bridges(self) -> bool:
        """Whether turns are continued on the exact tokens sampled before."""
        return self.rung != "full"

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

    def shape(self, kwargs: Mapping[str, Any] = NO_KWARGS) -> Shape:
        """What the template does with turns under these arguments; probed once for each set."""
        key = self._shape_key(kwargs)
        known = self._shapes.get(key)
        if known is not None:  # and nobody waits for a thread that probes others
            return known
        with self._probing:  # arguments that are new are probed in threads
            if key not in self._shapes:
                if len(self._shapes) >= _SHAPES_KEPT:
                    self._shapes.pop(next(iter(self._shapes)))
                render = functools.partial(self.render, kwargs=kwargs)
                shape = find_shape(render, self.encode, self._added)
                if self._template.tool_use:  # another template: never rendered without them
                    shape = replace(shape, tools_in_tail=True)
                self._shapes[key] = shape
            return self._shapes[key]

    def is_probed(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether `shape` takes no time."""
        return self._shape_key(kwargs) in self._shapes

    def _shape_key(self, kwargs: Mapping[str, Any]) -> str:
        asked = {name: kwargs[name] for name in kwargs if name in self._arguments}
        return json.dumps(asked, sort_keys=True) if asked else ""

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any] = NO_KWARGS,
        *,
        most: int | None = None,
    ) -> list[int]:
        """The whole conversation, ready for the model's reply.

        Raises:
            ValueError: the template refuses these messages.
        """
        return self.encode(self.render(messages, tools, kwargs=kwargs), most=most)

    def suffix(
        self,
        reply: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any] = NO_KWARGS,
        *,
        most: int | None = None,
    ) -> list[int]:
        """What follows the end of the sampled turn `reply`: `messages`, then the next opening.

        Of `reply` only the names and ids of its tool calls matter. Of templates whose turns end
        where the next one opens, that opening is the first token.

        Raises:
            ValueError: the template refuses these messages, or it has no local turns.
        """
        shape = self.shape(kwargs)
        if shape.end is None:
            raise ValueError("this chat template does not end assistant turns")
        tools = tools if shape.tools_in_tail else None
        tail = by_sentinel(self._bound(kwargs), shape.end, reply, messages, tools)
        return self.encode(tail, most=most)

    def counted_suffix(
        self,
        messages: Sequence[Mapping[str, Any]],
        num_new: int,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any] = NO_KWARGS,
        *,
        most: int | None = None,
    ) -> list[int]:
        """`suffix`, cut out of the whole conversation; its last `num_new` messages are new.

        Raises:
            ValueError: the template refuses these messages, or it has no local turns.
        """
        end = self.shape(kwargs).end
        if end is None:
            raise ValueError("this chat template does not end assistant turns")
        tail = by_count(self._bound(kwargs), end, messages, num_new, tools)
        return self.encode(tail, most=most)

    def moves_systems(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> bool:
        """Whether system messages behind the first are put together at the front: the template
        has no other place for them."""
        return self._for(tools)[1].moves_systems(messages)

    def text(self, ids: Sequence[int]) -> str:
        """Sampled tokens as text, special tokens included."""
        if len(ids) > _LONG_IDS:
            return self._tokenizer.decode_batch([ids], skip_special_tokens=False)[0]
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Tokens that stand for a text of their own, whatever is around it."""
        return self._added

    @property
    def template(self) -> ChatTemplate:
        """What renders messages."""
        return self._template

    def encode_raw(self, text: str, *, most: int | None = None) -> list[int]:
        """A text that is a whole prompt, with what the tokenizer puts before texts.

        Raises:
            TooLong: as `encode`.
        """
        self._check_length(text, most)
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=True)[0].ids

    def knows(self, id: int) -> bool:
        """Whether the vocabulary has a token id."""
        return 0 <= id < 2**31 and self._tokenizer.id_to_token(id) is not None

    def encode(self, text: str, *, most: int | None = None) -> list[int]:
        """Text as the template writes it, special tokens included, to ids.

        With `most`, a text that is far longer than so many tokens is not tokenised to its end.

        Raises:
            TooLong: it has more tokens than `most`.
        """
        self._check_length(text, most)
        ids = (one.ids for found in self._encoded(text) for one in found)
        return list(chain.from_iterable(ids))

    def _encoded(self, text: str) -> Iterator[list[Encoding]]:
        """What the parts between marks are encoded to, some at a time."""
        parts = text.split(_BREAK)
        for start in range(0, len(parts), _PARTS):
            # In contrast to `encode`, it lets other threads run, and does not find out where each
            # token stands in the text.
            some = parts[start : start + _PARTS]
            yield self._tokenizer.encode_batch_fast(some, add_special_tokens=False)

    def _check_length(self, text: str, most: int | None) -> None:
        """Of a long text, count tokens piece by piece, and stop once there are more than `most`,
        and as many again as cutting a text anywhere may have added."""
        if most is None or len(text) <= max(_DENSE * most, _PIECE):
            return
        count = 0
        for start in range(0, len(text), _PIECE):
            encoded = self._encoded(text[start : start + _PIECE])
            count += sum(len(one) for found in encoded for one in found)
            if count > most + most // 8 + 64:
                raise TooLong(count)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> str:
        """What `prompt` encodes; literal special tokens of others carry a mark inside.

        Raises:
            ValueError: the template refuses these messages.
        """
        template, fitting = self._for(tools)
        return template.render(
            [self._disarmed(message) for message in fitting.fit(messages)],
            tools,
            add_generation_prompt=add_generation_prompt,
            kwargs=kwargs,
        )

    def unmarked(self, rendered: str) -> str:
        """A rendered conversation as the model's users would see it."""
        return rendered.replace(_BREAK, "")

    def _for(self, tools: Sequence[Mapping[str, Any]] | None) -> tuple[ChatTemplate, Fitting]:
        return self._with_tools if tools else (self._template, self._fitting)

    def _bound(self, kwargs: Mapping[str, Any]) -> Render:
        return functools.partial(self.render, kwargs=kwargs)

    def _log_rung(self) -> None:
        if self.rung == "full":
            _log.warning("every turn becomes its own row: %s", self.why)
        elif self.why:
            _log.warning("turns are continued by %s: %s", self.rung, self.why)
        else:
            _log.debug("turns are continued by %s", self.rung)

    def _disarmed(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message with marks inside the special tokens that others wrote."""
        text = message["content"]
        if message["role"] not in ("user", "tool") or not text or not self._special:
            return message
        if not self._special.search(text):
            return message
        cuts = (literal.start() + 1 for literal in self._special.finditer(text))
        return {**message, "content": _broken(text, cuts)}


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
        if self._done == len(self._ids):
            return ""
        known = self._chat.text(self._ids[self._start : self._done])
        text = self._chat.text(self._ids[self._start :])
        if text.endswith("\ufffd") and not last:
            return ""
        if len(text) > len(known):
            self._start, self._done = self._done, len(self._ids)
        return text[len(known) :]


def _broken(text: str, cuts: Iterable[int]) -> str:
    """Return the text with a mark at each cut; thousands at a time, so that other threads run."""
    start, parts = 0, list[str]()
    cuts = iter(cuts)
    while batch := list(islice(cuts, _BATCH)):
        parts.append(_BREAK.join(text[a:b] for a, b in pairwise([start, *batch])))
        start = batch[-1]
    return _BREAK.join([*parts, text[start:]])
