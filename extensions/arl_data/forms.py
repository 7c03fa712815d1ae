"""The known forms of rows (the group `agentgym_rl.row_forms`): the columns that data sets have, and
the prompt in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from agentgym_rl.core import is_list, is_mapping
from agentgym_rl.gym import data
from agentgym_rl.gym.data import Row, RowRefused, shorten

_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user"}
"""The roles of chat messages, by the names in `from` of ShareGPT's rows."""


def instruction(row: Row) -> str:
    """Return the instruction, followed by the input that it is about, if there is one."""
    text, about = row.get("instruction"), row.get("input")
    if not isinstance(text, str):
        raise RowRefused(f"instruction: got {shorten(text)}, expected text")
    return f"{text}\n\n{about}" if isinstance(about, str) and about.strip() else text


def before_reply(row: Row) -> list[Any]:
    """Return the messages of a conversation before the assistant's last reply."""
    return _without_reply(row.get("messages"), "messages")


def sharegpt(row: Row) -> list[Any]:
    """Return the messages of a conversation in ShareGPT's form, before the last reply."""
    turns: Any = row.get("conversations")
    return _without_reply([_message(turn) for turn in turns or ()], "conversations")


def _message(turn: Any) -> Mapping[str, Any]:
    if not is_mapping(turn):
        raise RowRefused(f"conversations: got {shorten(turn)}, expected from and value")
    if turn.get("from") not in _ROLES:
        return turn  # refused later, or a message with role and content already
    return {"role": _ROLES[turn["from"]], "content": turn.get("value")}


def _without_reply(messages: Any, name: str) -> list[Any]:
    if not is_list(messages) or not messages:
        raise RowRefused(f"{name}: got {shorten(messages)}, expected a list of messages")
    return messages[:-1] if _is_reply(messages[-1]) else messages


def _is_reply(message: Any) -> TypeGuard[Mapping[str, Any]]:
    return is_mapping(message) and message.get("role") == "assistant"


def reply(row: Row) -> Any:
    """Return what the assistant says or calls at the end of a conversation, or None."""
    messages = row.get("messages")
    last = messages[-1] if is_list(messages) and messages else None
    return (last.get("content") or last.get("tool_calls")) if _is_reply(last) else None


def sharegpt_reply(row: Row) -> Any:
    """Return what the assistant says at the end of a conversation in ShareGPT's form, or None."""
    turns = row.get("conversations")
    return reply({"messages": [_message(turn) for turn in turns]}) if is_list(turns) else None


def ground_truth(row: Row) -> Any:
    """Return the answer in a row of verl, or None."""
    found = row.get("reward_model")
    return found.get("ground_truth") if is_mapping(found) else None


PROMPT_ANSWER = data.RowForm("prompt", ("answer",), answer="answer")
PROMPT_COMPLETION = data.RowForm("prompt", ("completion",), answer="completion")
PROMPT_SOLUTION = data.RowForm("prompt", ("solution",), answer="solution")
PROMPT_GROUND_TRUTH = data.RowForm("prompt", ("ground_truth",), answer="ground_truth")
VERL = data.RowForm(
    "prompt",
    ("data_source", "reward_model"),
    answer="reward_model['ground_truth']",
    find_answer=ground_truth,
)
QUESTION = data.RowForm("question")
QUESTION_ANSWER = data.RowForm("question", ("answer",), answer="answer")
QUESTION_FINAL = data.RowForm("question", ("final_answer",), answer="final_answer")
PROBLEM = data.RowForm("problem")
PROBLEM_ANSWER = data.RowForm("problem", ("answer",), answer="answer")
PROBLEM_SOLUTION = data.RowForm("problem", ("solution",), answer="solution")
INSTRUCTION_OUTPUT = data.RowForm(
    "instruction", ("output",), instruction, "instruction, then input", "output"
)
MESSAGES = data.RowForm(
    "messages",
    read=before_reply,
    reads="messages without the last reply",
    answer="messages[-1]['content']",
    find_answer=reply,
)
CONVERSATIONS = data.RowForm(
    "conversations",
    read=sharegpt,
    reads="conversations without the last reply",
    answer="conversations[-1]['value']",
    find_answer=sharegpt_reply,
)
