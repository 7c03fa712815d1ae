"""Supervised data as tokens: those that a rollout of it would have recorded."""

import asyncio
import itertools
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
from arl_envs.math.env import MathEnv
from arl_envs.math.oracle import solve
from arl_warmup import method as warmup
from arl_warmup.method import rows_of, token_rows

from agentgym_rl.config import Config, GatewayConfig
from agentgym_rl.core import ConfigError
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases

CHAT = ChatFormat.load(BUNDLED)
TOOLS = [dict(tool) for tool in MathEnv().tools]


def conversation(number: int) -> list[dict]:
    """A task, played by the oracle, with what its tools answer."""
    task = MathEnv.task_source("train", seed=number)[0]
    messages: list[dict] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": task.data["question"]},
    ]
    for message in map(dict, solve(task)):
        messages.append(message)
        if calls := message.get("tool_calls"):
            number = random.Random(number).randrange(99)
            messages.append(
                {"role": "tool", "tool_call_id": calls[0]["id"], "content": f"{number}"}
            )
    return messages


@cases("number", range(8))
def test_rows_are_what_a_rollout_would_have_recorded(number):
    messages = conversation(number)
    said = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    ((ids, mask),) = rows_of(CHAT, messages, TOOLS)
    expected = CHAT.prompt(messages[: said[0]], TOOLS)
    for now, after in itertools.pairwise([*said, None]):
        start = len(expected)
        end = ids.index(CHAT.close_id, start) + 1
        assert not mask[start - 1]
        assert all(mask[start:end])
        expected += ids[start:end]
        if after is not None:
            expected += CHAT.suffix(messages[now], messages[now + 1 : after], TOOLS)
    assert ids == expected


def lines(tmp_path, *objects) -> list:
    file = tmp_path / "data.jsonl"
    file.write_text("".join((o if isinstance(o, str) else json.dumps(o)) + "\n" for o in objects))
    return token_rows(file, CHAT, max_tokens=512)


def test_both_forms_give_the_same_rows(tmp_path):
    messages = conversation(1)
    ((ids, mask),) = rows_of(CHAT, messages, TOOLS)
    labels = [id if said else -100 for id, said in zip(ids, mask, strict=True)]
    chat, tokens = lines(
        tmp_path, {"messages": messages, "tools": TOOLS}, {"input_ids": ids, "labels": labels}
    )
    assert np.array_equal(chat.tokens, tokens.tokens)
    assert np.array_equal(chat.loss_mask, tokens.loss_mask)
    assert (chat.temperatures[chat.loss_mask] == 1).all()


def test_text_parts_are_read_like_the_text_they_are(tmp_path):
    plain = conversation(1)
    parts = [
        {**m, "content": [{"type": "text", "text": m["content"][i : i + 9]}
                          for i in range(0, len(m["content"]), 9)]} if m.get("content") else m
        for m in plain
    ]  # fmt: skip
    assert parts != plain
    one, other = lines(tmp_path, *({"messages": m, "tools": TOOLS} for m in (plain, parts)))
    assert np.array_equal(one.tokens, other.tokens)
    assert np.array_equal(one.loss_mask, other.loss_mask)


def test_the_first_token_has_nothing_to_be_learned_from(tmp_path):
    (row,) = lines(tmp_path, {"input_ids": [5, 6, 7], "labels": [5, 6, 7]})
    assert row.loss_mask.tolist() == [False, True, True]


USER = {"role": "user", "content": "Hi"}


@cases(
    "line, said",
    [
        ("{", "line 2 is no JSON"),
        ("7", "line 2 is no JSON object"),
        ({"text": "x"}, r"line 2: neither messages nor input_ids, but \['text'\]"),
        ({"messages": [USER]}, "line 2: no message of the assistant"),
        ({"messages": 7}, "line 2: "),
        (
            {"messages": [{**USER, "content": "<|user|>Hi<|assistant|>"}]},
            "line 2: a prompt that is rendered already",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "line 2: message 0: content: got the part {'type': 'image_url'.*, expected text",
        ),
        ({"messages": [{"role": "wizard"}, {"role": "assistant"}]}, "line 2: "),
        ({"input_ids": [1, 2], "labels": [1]}, "line 2: 2 input_ids and 1 labels"),
        ({"input_ids": [1, 2], "labels": [-100, -100]}, "line 2: no token to learn"),
        ({"input_ids": [1, 10**6], "labels": [-100, 1]}, "token 1000000 is not in the model's"),
        ({"input_ids": [1] * 513, "labels": [1] * 513}, "513 tokens, allowed: 512"),
    ],
    ids=range(12),
)
def test_a_bad_line_is_named(tmp_path, line, said):
    good = {"messages": [USER, {"role": "assistant", "content": "Hello"}]}
    with pytest.raises(ConfigError, match=said):
        lines(tmp_path, good, line)


def test_a_file_without_lines_or_none_at_all_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="has no line"):
        lines(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        token_rows(tmp_path / "none.jsonl", CHAT, max_tokens=9)


@cases("init", [{"method": "sft"}, {"data": "x.jsonl"}])
def test_method_and_data_go_together(init):
    with pytest.raises(ValueError, match="--init sft --data FILE"):
        Config(init=init)


def test_a_step_is_shown_once_however_long_the_next_one_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(warmup, "_SHOW_S", -1.0)
    monkeypatch.setattr(warmup, "_POLL_S", 0.001)
    file, phases = tmp_path / "steps.jsonl", list[str]()

    async def ranks() -> None:
        for step in range(2):
            with file.open("a") as out:
                out.write(json.dumps({"step": step, "steps": 3, "loss": 1.0 - step}) + "\n")
            await asyncio.sleep(0.1)

    async def follow() -> None:
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(ranks())
            await warmup._follow(work, file, SimpleNamespace(phase=phases.append), limit_s=60)

    asyncio.run(follow())
    shown = [phase.partition(", eta")[0] for phase in phases]
    assert shown == [f"warming up: {k + 1} of 3 steps, loss {1.0 - k:.3f}" for k in range(2)]


def test_the_time_left_follows_from_the_pace_of_this_process():
    assert warmup._left((154, 10.0), (154, 10.0), 189) == ""
    assert warmup._left((154, 10.0), (159, 20.0), 189) == ", eta 60 s"


def prepared(tmp_path, *objects) -> list:
    """The rows in RUN/init of a warm-up on these conversations."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(it) + "\n" for it in objects))
    chat = GatewayConfig()
    return warmup._prepare(data, tmp_path / "init", BUNDLED, chat, max_tokens=512, held_out=None)


def test_a_warm_up_on_the_same_rows_goes_on_and_on_others_begins_again(tmp_path):
    one, other = ({"messages": conversation(n), "tools": TOOLS} for n in (1, 2))
    prepared(tmp_path, one)
    steps = tmp_path / "init" / "steps.jsonl"
    steps.write_text("{}\n")
    prepared(tmp_path, one)
    assert steps.exists()
    prepared(tmp_path, one, other)
    assert not steps.exists()


def test_steps_after_the_checkpoint_are_taken_again(tmp_path):
    (tmp_path / "steps.jsonl").write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert warmup._continued(tmp_path) == (None, 0)
    assert (tmp_path / "steps.jsonl").read_text() == ""
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    assert warmup._continued(tmp_path) == (None, 0)
