"""The conversion between chat messages and token ids for one model: prompts, continuations, text.

Literal special tokens in user and tool messages ("<|im_end|>" printed by a program) become ordinary
text tokens, so that only the chat template can open or close a turn. Everything else tokenises as
`transformers.apply_chat_template` does it.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import ConfigError, end_ids, is_rendered
from agentgym_rl.core.chat import RENDERED
from agentgym_rl.runtime import LruDict

from .arguments import Arguments
from .continuation import (
    Messages,
    Render,
    Rung,
    Shape,
    Tools,
    by_count,
    by_sentinel,
    find_shape,
    up_to,
)
from .fitting import Fitting, opening_of, textual, with_texts
from .literals import BREAK, Literals
from .special_tokens import add_special_tokens
from .template import NO_KWARGS, ChatTemplate

_log = logging.getLogger(__name__)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts come one at a time

_LONG_IDS = 1_000
"""The number of ids above which decoding is done in a way that lets other threads run, which costs
time itself."""
_DENSE = 4
"""The number of characters per allowed token up to which a text is tokenised at once. A longer text
is counted first, to see whether it can fit."""
_PIECE = 32_768
"""The number of characters that are counted at once."""
_PARTS = 2_000
"""The number of parts of a text that are tokenised at once: other threads wait while the results
are freed."""
_SHAPES_KEPT = 64
"""The number of sets of template arguments whose shapes are kept; a probe takes milliseconds."""
_ASKING = ("user", "system", "developer")
_DEFAULTS = GatewayConfig()


class TooLong(Exception):
    """An error for a text that has more tokens than allowed: at least `num_tokens`."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"the text has at least {num_tokens} tokens")
        self.num_tokens = num_tokens


class ChatFormat:
    """The chat format of one model folder.

    `rung` names the method by which a turn is continued on the exact tokens sampled before (see
    `shape`); `why` is the reason why the better rungs cannot be used. On the last rung, `full`,
    every turn renders the complete conversation anew and is a row of its own. `close_id` ends an
    assistant turn in the template (None: no token does, or the next turn's first token does, one of
    `opener_ids`); `stop_token_ids` end a reply.

    Raises:
        ConfigError: the template cannot do what `config` demands.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        eos_ids: Iterable[int],
        config: GatewayConfig = _DEFAULTS,
    ) -> None:
        self._tokenizer = tokenizer
        self.template = template
        """The template that renders messages."""
        added = tokenizer.get_added_tokens_decoder()
        self._special = Literals(token.content for token in added.values() if token.special)
        self.added_tokens = {token.content: id for id, token in added.items()}
        """The ids of added tokens by their text, which is always one token, whatever is around
        it."""
        self._opening = opening_of(template, self._special.pattern)
        self._warned_rendered = False
        self._shapes: LruDict[str, Shape] = LruDict(_SHAPES_KEPT)
        self._probing = threading.Lock()
        self._config = config
        tooled, folds = template.tool_use, config.hidden_tools == "system"
        self._fitting = Fitting.of(template, may_fold=folds and tooled is None)
        self._with_tools = (template, self._fitting)
        if tooled is not None:
            self._with_tools = (tooled, Fitting.of(tooled, may_fold=folds))
        variables = template.variables | self._with_tools[0].variables
        self.arguments = Arguments(variables, thinks=config.enable_thinking)
        """The template arguments of requests."""
        shape = self.shape()
        self.rung: Rung = shape.rung
        self.why = shape.why
        ends = [self.added_tokens[text] for text in shape.end.texts] if shape.end else []
        opens = shape.end is not None and shape.end.opens
        self.close_id = ends[0] if ends and not opens else None
        self.close_ids = frozenset(() if opens else ends)
        self._close_calls_id = ends[-1] if self.close_ids else None
        self.opener_ids = frozenset(ends if opens else ())
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*ends, *eos_ids]))
        self._log_rung()

    @property
    def vocab_size(self) -> int:
        """Return the number of the tokenizer's ids; a model may have more."""
        return max(self._tokenizer.get_vocab().values()) + 1

    def tokenizer_json(self) -> str:
        """Return the text of tokenizer.json."""
        return self._tokenizer.to_str()

    def close_of(self, reply: Mapping[str, Any]) -> int | None:
        """Return the token that ends the turn of a reply, as `close_id`; turns with calls may have
        another."""
        return self._close_calls_id if reply.get("tool_calls") else self.close_id

    @property
    def bridges(self) -> bool:
        """Return whether turns are continued on the exact tokens sampled before."""
        return self.rung != "full"

    @classmethod
    def load(cls, folder: Path | str, config: GatewayConfig = _DEFAULTS) -> ChatFormat:
        """Read tokenizer.json, the chat template and the end-of-turn ids of a model folder.

        Raises:
            ConfigError: a file is missing or cannot be read, or the template cannot do what
                `config` demands.
        """
        folder = Path(folder)
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception
            raise ConfigError(f"cannot read {folder / 'tokenizer.json'}: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        add_special_tokens(tokenizer, folder)
        ids = end_ids(folder, "generation_config.json")
        template = ChatTemplate.load(folder, config.chat_template, now=config.moment)
        named = tokenizer.token_to_id(template.special_tokens.get("eos_token", ""))
        return cls(tokenizer, template, ids if named is None else [*ids, named], config)

    def shape(self, kwargs: Mapping[str, Any] = NO_KWARGS) -> Shape:
        """Return how the template writes turns under these arguments; probed once for each set."""
        key = self._shape_key(kwargs)
        known = self._shapes.get(key)
        if known is not None:  # known: no need to wait for a thread that probes other arguments
            return known
        with self._probing:  # new arguments are probed in threads
            shape = self._shapes.get(key)
            if shape is None:
                render = functools.partial(self.render, kwargs=kwargs)
                shape = find_shape(render, self.encode, self.added_tokens)
                if self.template.tool_use:  # a different template, never rendered without tools
                    shape = replace(shape, tools_in_tail=True)
                self._shapes[key] = shape
            return shape

    def is_probed(self, kwargs: Mapping[str, Any]) -> bool:
        """Return whether `shape` is already known for these arguments."""
        return self._shape_key(kwargs) in self._shapes

    def _shape_key(self, kwargs: Mapping[str, Any]) -> str:
        effective = {name: kwargs[name] for name in kwargs if name in self.arguments.read}
        return json.dumps(effective, sort_keys=True) if effective else ""

    def prompt(
        self,
        messages: Messages,
        tools: Tools,
        kwargs: Mapping[str, Any] = NO_KWARGS,
        *,
        begun: Mapping[str, Any] | None = None,
        most: int | None = None,
    ) -> list[int]:
        """Return the token ids of the complete conversation, ready for the model's reply, or for
        the rest of a reply that has `begun`.

        Raises:
            ValueError: the template refuses these messages.
        """
        return self.encode(self.rendering(kwargs, begun)(messages, tools), most=most)

    def rendering(self, kwargs: Mapping[str, Any], begun: Mapping[str, Any] | None) -> Render:
        """Return the function that renders messages, up to the reply or to the end of its
        beginning, `begun`."""
        render = functools.partial(self.render, kwargs=kwargs)
        return render if begun is None else up_to(begun, render)

    def suffix(
        self,
        reply: Mapping[str, Any],
        messages: Messages,
        tools: Tools,
        kwargs: Mapping[str, Any] = NO_KWARGS,
        *,
        begun: Mapping[str, Any] | None = None,
        most: int | None = None,
    ) -> list[int]:
        """Return the ids after the end of the turn `reply`: those of `messages`, of the opening of
        the next reply, and of its beginning `begun`.

        Only the names and ids of the tool calls of `reply` matter. For templates whose turns end
        where the next one opens, that opening is the first token.

        Raises:
            ValueError: the template refuses these messages, or it has no local turns.
        """
        self._check_alternation(messages or [begun] if begun else messages, tools)
        shape = self.shape(kwargs)
        tools = tools if shape.tools_in_tail else None
        render = self.rendering(kwargs, begun)
        tail = by_sentinel(render, shape.known_end, reply, messages, tools)
        return self.encode(tail, most=most)

    def counted_suffix(
        self,
        messages: Messages,
        num_new: int,
        tools: Tools,
        kwargs: Mapping[str, Any] = NO_KWARGS,
        *,
        begun: Mapping[str, Any] | None = None,
        most: int | None = None,
    ) -> list[int]:
        """Return `suffix`, cut out of a complete conversation with `num_new` new messages last.

        Raises:
            ValueError: the template refuses these messages, or it has no local turns.
        """
        self._check_alternation(messages[len(messages) - num_new :], tools)
        render = self.rendering(kwargs, begun)
        tail = by_count(render, self.shape(kwargs).known_end, messages, num_new, tools)
        return self.encode(tail, most=most)

    def _check_alternation(self, new: Messages, tools: Tools) -> None:
        if new and new[0]["role"] == "assistant" and self._for(tools)[1].alternates:
            raise ValueError("this chat template has one turn of the assistant's, not two")

    def moves_systems(self, messages: Messages, tools: Tools) -> bool:
        """Return whether system messages behind the first are merged at the front, because the
        template has no other place for them."""
        return self._for(tools)[1].moves_systems(messages)

    @property
    def calls_as_text(self) -> bool:
        """Return whether calls are written in the form of the parser hermes, not in the
        template's."""
        return self._with_tools[1].calls_as_text

    @property
    def omits_tools(self) -> bool:
        """Return whether prompts do not contain the offered tools."""
        fitting = self._with_tools[1]
        return fitting.hides_tools and not fitting.tools_as_text

    def check_tools(self, tools: Tools) -> None:
        """Refuse tools that the configuration and the chat template do not allow.

        Raises:
            ConfigError: the template hides them, and the configuration forbids to write them into
                the system message, or has a parser of another form of calls.
        """
        fitting, config = self._with_tools[1], self._config
        if not tools or not fitting.hides_tools:
            return
        hidden = "tools are offered, and the chat template does not write them into the prompt"
        if config.hidden_tools == "refuse":
            raise ConfigError(
                f"{hidden} (gateway.hidden_tools is 'refuse'): use a model whose template knows "
                "tools, or set 'system', which writes them into the system message"
            )
        if self.calls_as_text and config.tool_parser not in ("auto", "hermes", "none"):
            raise ConfigError(
                f"{hidden}: they go into the system message, in the form that the parser hermes "
                f"reads, but gateway.tool_parser is {config.tool_parser!r}; leave it out, or set "
                "gateway.hidden_tools = 'omit' and let the agent describe its tools"
            )

    def say_tools(self) -> None:
        """Log that tools become text of the system message, if the chat template hides them."""
        fitting = self._with_tools[1]
        if fitting.tools_as_text:
            _log.warning(
                "the chat template does not write tools into the prompt: they are listed in the "
                "system message%s (gateway.hidden_tools)",
                ", and calls are read as hermes" if self.calls_as_text else "",
            )

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled tokens, special tokens included."""
        if len(ids) > _LONG_IDS:
            return self._tokenizer.decode_batch([ids], skip_special_tokens=False)[0]
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def encode_raw(self, text: str, *, most: int | None = None) -> list[int]:
        """Encode a text that is a complete prompt, with the tokens the tokenizer puts before texts.

        Raises:
            TooLong: as `encode`.
        """
        self._check_length(text, most)
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=True)[0].ids

    def knows(self, id: int) -> bool:
        """Return whether the vocabulary has a token id."""
        return 0 <= id < 2**31 and self._tokenizer.id_to_token(id) is not None

    def encode(self, text: str, *, most: int | None = None) -> list[int]:
        """Encode text as the template writes it, special tokens included.

        With `most`, a text that is far longer than `most` tokens is not tokenised to its end.

        Raises:
            TooLong: the text has more tokens than `most`.
        """
        self._check_length(text, most)
        ids = (one.ids for found in self._encoded(text) for one in found)
        return list(chain.from_iterable(ids))

    def _encoded(self, text: str) -> Iterator[list[Encoding]]:
        """Yield the encodings of the parts between marks, a batch at a time."""
        parts = text.split(BREAK)
        for start in range(0, len(parts), _PARTS):
            # Unlike `encode`, this call lets other threads run, and does not compute the text
            # offsets of the tokens.
            some = parts[start : start + _PARTS]
            yield self._tokenizer.encode_batch_fast(some, add_special_tokens=False)

    def _check_length(self, text: str, most: int | None) -> None:
        """Count the tokens of a long text piece by piece, and raise once there are more than `most`
        plus the number that cutting the text anywhere may have added."""
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
        messages: Messages,
        tools: Tools,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> str:
        """Return the text that `prompt` encodes; literal special tokens in messages carry a mark.

        Raises:
            ValueError: the template refuses these messages.
        """
        template, fitting = self._for(tools)
        plain = [self._disarmed(textual(message)) for message in messages]
        fitted, tools = fitting.fit(plain, tools)
        write = functools.partial(
            template.render,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            kwargs={**kwargs, **self.arguments.imposed},
        )
        try:
            rendered = write(fitted)
        except ValueError:
            filled = with_texts(fitted)
            if filled == fitted:
                raise
            rendered = write(filled)  # clients send null for the content of calls
        return rendered + fitting.header if add_generation_prompt else rendered

    def unmarked(self, rendered: str) -> str:
        """Return a rendered conversation without the marks, as other software would render it."""
        return rendered.replace(BREAK, "")

    def holds_rendered(self, messages: Messages) -> bool:
        """Return whether a user's or system message is a text that a chat template has rendered:
        this one, or any other."""
        texts = [message.get("content") for message in messages if message["role"] in _ASKING]
        return any(self._is_rendered(text) for text in texts if isinstance(text, str))

    def _is_rendered(self, text: str) -> bool:
        if is_rendered(text):
            return True
        begins = self._special.begins(text.lstrip())
        return begins and bool(self._opening) and self._opening in text

    def _for(self, tools: Tools) -> tuple[ChatTemplate, Fitting]:
        return self._with_tools if tools else (self.template, self._fitting)

    def _log_rung(self) -> None:
        if self.rung == "full":
            _log.warning("every turn becomes its own row: %s", self.why)
        elif self.why:
            _log.warning("turns are continued by %s: %s", self.rung, self.why)
        else:
            _log.debug("turns are continued by %s", self.rung)

    def _disarmed(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message with marks inside the special tokens that users and tools wrote."""
        text = message.get("content")
        if message["role"] not in ("user", "tool") or not text:
            return message
        broken = self._special.broken(text)
        if broken is text:
            return message
        if not self._warned_rendered and message["role"] == "user" and self._is_rendered(text):
            self._warned_rendered = True
            _log.warning("a user's message looks like %s", RENDERED)
        return {**message, "content": broken}
