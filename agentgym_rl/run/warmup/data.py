"""Chat messages as the tokens that a rollout of them would have recorded.

Supervised data, as `arl export --sft` writes it and TRL reads it, as rows of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from agentgym_rl.core.chat import text_message
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.trajectory import IGNORED, Row, pack_row
from agentgym_rl.gateway.template.chat_format import ChatFormat

TokenRow = tuple[list[int], list[bool]]
"""Token ids, and which of them the assistant said."""


def rows_of(
    chat: ChatFormat,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> list[TokenRow]:
    """The conversation in rows in which each turn of the assistant is said once.

    A turn goes on the row before it where its prompt begins with just those tokens, as it does
    with most chat templates; where one rewrites history (drops thoughts, say), it has its own.

    Raises:
        ValueError: nobody says anything, or the template refuses the messages or writes a turn
            otherwise than it opens one.
    """
    rows: list[TokenRow] = []
    for at, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        prompt, reply = chat.prompt(messages[:at], tools), _reply(chat, messages[: at + 1], tools)
        if not rows or prompt[: len(rows[-1][0])] != rows[-1][0]:
            rows.append(([], []))
        ids, said = rows[-1]
        new = prompt[len(ids) :]
        ids += new + reply
        said += [False] * len(new) + [True] * len(reply)
    if not rows:
        raise ValueError("no message of the assistant")
    return rows


def _reply(
    chat: ChatFormat,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> list[int]:
    """The tokens of the last message, up to the one that ends it."""
    opened = chat.render(messages[:-1], tools)
    whole = chat.render(messages, tools, add_generation_prompt=False)
    if not whole.startswith(opened):
        raise ValueError(
            "the chat template writes the assistant's turn otherwise than it opens it: "
            f"{opened[-40:]!r} is not how {whole[-120:]!r} begins"
        )
    ids = chat.encode(whole[len(opened) :])
    if chat.close_id is None:
        return ids
    if chat.close_id not in ids:
        raise ValueError("the chat template does not end the assistant's turn")
    return ids[: ids.index(chat.close_id) + 1]


def token_rows(
    data: Path,
    chat: ChatFormat,
    *,
    max_tokens: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[Row]:
    """The rows of a JSONL file, one or more a line; labelled tokens are those that train.

    Raises:
        ConfigError: the file or a line of it cannot be read, or a row exceeds `max_tokens`.
    """
    rows: list[Row] = []
    for number, line in _lines(data):
        try:
            found = [_row(ids, said) for ids, said in _of_line(line, chat)]
            for row in found:
                if len(row) > max_tokens:
                    raise ValueError(
                        f"{len(row):,} tokens, allowed: {max_tokens:,} "
                        "(trainer.max_tokens_per_microbatch)"
                    )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"init.data {data}, line {number}: {error}") from error
        rows += found
        on_progress(1)
    if not rows:
        raise ConfigError(f"init.data {data} has no line")
    return rows


def write_rows(rows: list[Row], path: Path) -> None:
    """For the ranks; `trainer.warmup` reads them."""
    path.write_bytes(msgspec.msgpack.encode([pack_row(row) for row in rows]))


def _lines(data: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with data.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, _object(text, f"init.data {data}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"init.data {data} cannot be read: {error}") from error


def _object(text: str, said: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{said} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{said} is no JSON object")
    return found


def _of_line(line: Mapping[str, Any], chat: ChatFormat) -> Iterator[tuple[list[int], list[bool]]]:
    if "input_ids" in line:
        ids, labels = line["input_ids"], line["labels"]
        if len(ids) != len(labels):
            raise ValueError(f"{len(ids)} input_ids and {len(labels)} labels")
        for token in ids:
            if not chat.knows(token):
                raise ValueError(f"token {token} is not in the model's vocabulary")
        yield list(ids), [label != IGNORED for label in labels]
    elif "messages" in line:
        messages = [text_message(message) for message in line["messages"]]
        yield from rows_of(chat, messages, line.get("tools") or None)
    else:
        raise ValueError(f"neither messages nor input_ids, but {sorted(line)}")


def _row(ids: list[int], said: list[bool]) -> Row:
    """As if a policy had sampled it at temperature 1; its first token has no context to learn."""
    mask = np.asarray(said, np.bool_)
    mask[:1] = False
    if not mask.any():
        raise ValueError("no token to learn")
    tokens = np.asarray(ids, np.int32)
    nowhere = np.full(len(ids), -1, np.int32)
    return Row(
        tokens=tokens,
        loss_mask=mask,
        behavior_logprobs=np.zeros(len(ids), np.float32),
        policy_versions=nowhere,
        admitted_versions=nowhere,
        temperatures=mask.astype(np.float32),
        turn_ids=nowhere,
        times_s=np.zeros(len(ids)),
    )
