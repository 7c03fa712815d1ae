"""Chat messages as the tokens that a rollout of them would have recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.gateway.chat import ChatFormat

Row = tuple[list[int], list[bool]]
"""Token ids, and which of them the assistant said."""


def rows_of(
    chat: ChatFormat,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> list[Row]:
    """The conversation in rows in which each turn of the assistant is said once.

    A turn goes on the row before it where its prompt begins with just those tokens, as it does
    with most chat templates; where one rewrites history (drops thoughts, say), it has its own.

    Raises:
        ValueError: nobody says anything, or the template refuses the messages or writes a turn
            otherwise than it opens one.
    """
    rows: list[Row] = []
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
