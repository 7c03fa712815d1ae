"""A model's chat template: messages in, text out, exactly as transformers renders it.

Importing transformers would cost seconds and pull torch, so this is plain jinja2 plus what
transformers adds to it (`generation` blocks, `raise_exception`, `strftime_now`, loop controls,
its own `tojson`); `transformers.apply_chat_template` is the oracle in tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentgym_rl.errors import ConfigError
from agentgym_rl.model import template_files

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which clients and templates know what a model thought."""
RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("conversation", "chat_template", "tokenize", "strftime_now", "raise_exception"),
    }
)
"""Names that a client's template arguments may not have."""
NO_KWARGS: Mapping[str, Any] = {}
_REFUSALS = (
    *(TemplateError, TypeError, LookupError, AttributeError, ArithmeticError),
    RecursionError,
)
"""What templates raise, on purpose or not, on what they were not written for."""


class ChatTemplate:
    """A compiled chat template with the special tokens it may name.

    `response_template`: how replies are to be read (transformers 5), where a tokenizer says it.
    `tool_use`: the template of conversations in which tools are offered, where that is another.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        response_template: Mapping[str, Any] | None = None,
        tool_use: ChatTemplate | None = None,
    ) -> None:
        self.source = source
        self.response_template = response_template
        self.tool_use = tool_use
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            # a ChainMap, which every rendering would walk through
            self._template.globals = dict(self._template.globals)
            named = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.variables = frozenset(named)
        """Names that the template asks for; other arguments do nothing."""

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate:
        """The template of a model folder: that of its files, else tokenizer_config.json's. Where
        there are several, `default`, and `tool_use` when tools are offered.

        Raises:
            ConfigError: the folder has no chat template, or it does not compile.
        """
        tokenizer_config = read_json(folder / "tokenizer_config.json")
        files = template_files(folder)
        named: Any = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
        named = named or tokenizer_config.get("chat_template") or {}
        if isinstance(named, str):
            named = {"default": named}
        elif isinstance(named, list):
            named = {entry["name"]: entry["template"] for entry in named}
        source = named.get("default", named.get("tool_use"))
        if not isinstance(source, str):
            others = f"; it has only templates named {', '.join(named)}" if named else ""
            raise ConfigError(
                f"{folder} has no chat template (chat_template.jinja, or chat_template in "
                f"tokenizer_config.json); a base model cannot be spoken to in messages{others}"
            )
        special_tokens = _special_tokens(tokenizer_config)
        tooled = named.get("tool_use", source)
        return cls(
            source,
            special_tokens=special_tokens,
            response_template=tokenizer_config.get("response_template"),
            tool_use=None if tooled == source else cls(tooled, special_tokens=special_tokens),
        )

    def mentions(self, text: str) -> bool:
        """Whether a text is in the source, that of `tool_use` included."""
        tooled = self.tool_use is not None and self.tool_use.mentions(text)
        return tooled or text in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> str:
        """The conversation as text; `kwargs` are the template's own arguments.

        Raises:
            ValueError: the template refuses these messages.
        """
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **kwargs,
                    "messages": [_for_template(message) for message in messages],
                    "tools": tools or None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _REFUSALS as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; empty when there is no such file."""
    return json.loads(file.read_text()) if file.exists() else {}


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in tokenizer_config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Templates expect absent keys where OpenAI sends null, and one name for reasoning."""
    plain = {key: value for key, value in message.items() if value is not None}
    reasoning = next((plain[name] for name in REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance attribute)

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, quicker at what templates do most and what is safe: keys of plain dicts, and
    macros of their own."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _OF_DICTS:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if type(__obj) is Macro:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __obj(__context.eval_ctx, *args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)


_OF_DICTS = frozenset(dir(dict))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
