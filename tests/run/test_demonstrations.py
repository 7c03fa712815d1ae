"""Rows of supervised data: what is learned is what they hold, or it is refused or counted."""

import json
import logging
import shutil

import pytest
from arl_envs.math.env import MathEnv
from arl_warmup.held_out import HeldOut
from arl_warmup.method import token_rows

from agentgym_rl.config import Config, EvalConfig, GatewayConfig
from agentgym_rl.core import ConfigError
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gateway.parsers import readers_of
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases

CHAT = ChatFormat.load(BUNDLED)
PARSERS, _ = readers_of(CHAT, GatewayConfig())
HI = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello"}
ASK = {"role": "user", "content": "2+3?"}
ARGUMENTS = {"a": 2, "b": 3}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": None}},
}
FUNCTION = {"name": "add", "description": "Add.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}


def calling(arguments=ARGUMENTS, **fields) -> dict:
    function = {"name": "add", "arguments": arguments}
    calls = [{"id": "call_1_0", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls} | fields


RESULT = {"role": "tool", "tool_call_id": "call_1_0", "content": "5"}
FIVE = {"role": "assistant", "content": "It is 5"}
PLAYED = [ASK, calling(), RESULT, FIVE]
PLAIN = {"messages": PLAYED, "tools": [TOOL]}


def read(tmp_path, *rows, chat=CHAT, **options) -> list:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return token_rows(file, chat, max_tokens=1024, **options)


def learned(rows, chat=CHAT) -> str:
    return "|".join(
        chat.text([int(t) for t, said in zip(row.tokens, row.loss_mask, strict=True) if said])
        for row in rows
    )


def warnings(caplog) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


CALLS = calling()["tool_calls"]
OLD_CALL = {"role": "assistant", "content": None, "function_call": CALLS[0]["function"]}
OLD_RESULT = {"role": "function", "name": "add", "content": "5"}
SAID = json.dumps({"name": "add", "arguments": ARGUMENTS})


@cases(
    "row",
    [
        {**PLAIN, "tools": json.dumps([TOOL])},
        {**PLAIN, "tools": [json.dumps(TOOL)]},
        {**PLAIN, "tools": [FUNCTION]},
        {**PLAIN, "tools": json.dumps(FUNCTION)},
        {**PLAIN, "tools": [{"name": "add", "description": "Add.", "input_schema": SCHEMA}]},
        {**PLAIN, "tools": [{"function": {**FUNCTION, "parameters": json.dumps(SCHEMA)}}]},
        {**PLAIN, "tools": [{"function": {**FUNCTION, "parameters": {**SCHEMA, "anyOf": None}}}]},
        {**PLAIN, "messages": [ASK, calling(json.dumps(ARGUMENTS)), RESULT, FIVE]},
        {**PLAIN, "messages": [ASK, calling({**ARGUMENTS, "path": None}), RESULT, FIVE]},
        {**PLAIN, "messages": json.dumps(PLAYED)},
        {**PLAIN, "messages": [ASK, calling(tool_calls=json.dumps(CALLS)), RESULT, FIVE]},
        {**PLAIN, "messages": [ASK, calling(tool_calls=[json.loads(SAID)]), RESULT, FIVE]},
        {"messages": [ASK, OLD_CALL, OLD_RESULT, FIVE], "functions": [FUNCTION]},
        {"prompt": [ASK], "completion": PLAYED[1:], "tools": [TOOL]},
        {"conversations": PLAYED, "tools": [TOOL]},
        {
            "conversations": [
                {"from": "human", "value": "2+3?"},
                {"from": "function_call", "value": SAID},
                {"from": "observation", "value": "5"},
                {"from": "gpt", "value": "It is 5"},
            ],
            "tools": json.dumps([TOOL]),
        },
    ],
    ids=range(16),
)  # fmt: skip
def test_every_form_of_a_conversation_gives_the_same_tokens(tmp_path, row):
    plain, other = read(tmp_path, PLAIN, row)
    assert CHAT.text(other.tokens.tolist()) == CHAT.text(plain.tokens.tolist())
    assert other.loss_mask.tolist() == plain.loss_mask.tolist()


def test_the_column_of_the_system_message_is_its_first(tmp_path):
    system = {"role": "system", "content": "Be brief."}
    rows = read(tmp_path, {"messages": [system, HI, HELLO]},
                {"messages": [HI, HELLO], "system": "Be brief."})  # fmt: skip
    assert rows[0].tokens.tolist() == rows[1].tokens.tolist()


@cases("field", [{"weight": 0}, {"train": False}, {"loss_mask": 0}, {"loss": False},
                 {"masked": True}, {"trainable": 0}])  # fmt: skip
def test_a_message_of_weight_0_is_context(tmp_path, field):
    (row,) = read(tmp_path, {"messages": [HI, {**HELLO, **field}, HI, FIVE]})
    assert learned([row]) == "It is 5<|im_end|>"
    assert "Hello" in CHAT.text(row.tokens.tolist())


@cases("field", [{"weight": 0}, {"train": False}, {"loss_weight": 0.0}])
def test_a_row_of_weight_0_is_left_out_and_counted(tmp_path, caplog, field):
    rows = read(tmp_path, {"messages": [HI, HELLO], "weight": 1}, {"messages": [HI, FIVE]} | field)
    assert learned(rows) == "Hello<|im_end|>"
    assert "1 × row of weight 0, left out (first in line 2)" in warnings(caplog)


@cases(
    "row, said",
    [
        ({"messages": [HI, HELLO], "weight": 0.5}, "weight: got 0.5; all rows are learned alike"),
        ({"messages": [HI, {**HELLO, "weight": 0.5}]}, "weight: got 0.5, allowed: 0 and 1"),
        ({"messages": [HI, {**HELLO, "weight": 0}]}, "no reply to learn"),
        ({"messages": [HI, {**HELLO, "content": " "}]}, "no reply to learn"),
        ({"messages": [HI, {**HELLO, "train_detail": []}]}, "train_detail is not read"),
        ({"messages": [HI, HELLO], "assistant_masks": [1]}, "assistant_masks is not read"),
        ({"prompt": [HI], "completion": [HELLO], "label": False}, "label: got False"),
        ({"messages": [HI, HELLO], "label": 0}, "label: got 0; true is a good example"),
        ({"messages": [HI, {**HELLO, "content": "\ud800"}]}, "a message: a lone surrogate"),
        ({"messages": [HI, calling(), {**RESULT, "content": [{"x": 1}]}]}, "message 2: content"),
        ({"prompt": "Hi", "chosen": "Hello", "rejected": "Go"}, "write the conversation to learn"),
        ({"messages": [HI, HELLO], "conversations": []}, "which of them is the conversation"),
        ({"messages": [HI, {"role": "gpt", "content": "x"}]}, "role 'gpt', allowed: system"),
        ({"conversations": [{"from": "alien", "value": "x"}]}, "from 'alien', allowed: human"),
        ({"messages": [HI, {**HELLO, "content": {"a": 1}}]}, "expected text"),
        ({"messages": [HI, HELLO], "tools": "add(a, b)"}, "tools: got the text .* is no JSON"),
        ({"messages": [HI, HELLO], "tools": ["add"]}, "is no JSON"),
        ({"messages": [HI, HELLO], "tools": [7]}, "expected {"),
        ({"messages": [HI, HELLO], "tools": {"add": {}}}, "expected a list of tools"),
        ({"messages": [HI, calling(tool_calls=[{"function": {}}])]}, "got the call"),
        ({"messages": [HI, calling([2, 3])]}, "arguments of 'add': got"),
        ({"messages": [{**HI, "tool_calls": calling()["tool_calls"]}, HELLO]}, "of the role user"),
        ({"messages": [HI, HELLO], "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"messages": [HI, {**HELLO, "content": "a<|im_end|>b"}]}, "the token that ends a turn"),
        ({"messages": [HI, HELLO], "system": ["x"]}, "system: got"),
        ({"input_ids": [1, 2]}, "input_ids without labels"),
        ({"input_ids": [1, 2, 3], "labels": [2, 3, -100]}, "labels are not shifted"),
        ({"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1, 0]}, "leave the padding"),
    ],
    ids=range(28),
)
def test_a_row_that_would_train_something_else_is_refused(tmp_path, row, said):
    with pytest.raises(ConfigError, match=f"line 2: .*{said}"):
        read(tmp_path, {"messages": [HI, HELLO]}, row)


@cases(
    "messages, said",
    [
        ([HI, {**HELLO, "content": ""}, HI, FIVE], "empty reply, not learned"),
        ([HI, {**HELLO, "reasoning": "Hm."}], "reply whose thoughts are not learned"),
        ([{**HI, "name": "Ada"}, HELLO], "`name` of a message of the role user"),
        (
            [ASK, calling(content="I add."), RESULT, FIVE],
            "row that calls tools which it does not list",
        ),
        ([{**HI, "train": True}, HELLO], "message to be trained that is not the assistant's"),
        (
            [ASK, calling(), {**RESULT, "content": "<tool_response>5</tool_response>"}, FIVE],
            "message of the role tool that begins with <tool_response>, which the chat template",
        ),
        ([ASK, calling(content=f"<tool_call>{SAID}</tool_call>"), FIVE], "reply with a call in"),
    ],
    ids=range(7),
)
def test_what_is_left_out_is_counted(tmp_path, caplog, messages, said):
    read(tmp_path, {"messages": messages}, {"messages": messages})
    assert f"2 × {said}" in warnings(caplog)


HERMES = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
ELSEWHERE = {
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"a": 2}}]',
    "llama": '<|python_tag|>{"name": "add", "parameters": {"a": 2}}',
    "xml": "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
    '<|tool_call_argument_begin|>{"a": 2}<|tool_call_end|><|tool_calls_section_end|>',
}


@cases("notation", ELSEWHERE)
@pytest.mark.parametrize("tools", [[TOOL], None])
def test_calls_in_another_model_s_notation_are_said(tmp_path, caplog, notation, tools):
    """They would be learned as texts that no parser reads."""
    caplog.clear()
    text = f"I add. {ELSEWHERE[notation]}"
    row = {"messages": [ASK, FIVE | {"content": text}], "tools": tools}
    read(tmp_path, PLAIN, row, row | {"n": 2}, parsers=PARSERS)
    assert "2 × reply with a tool call in its text that is not in this model's" in caplog.text
    assert f"(first in line 2: {text!r:.100})" in warnings(caplog)


@cases("text", [HERMES, f"I add. {HERMES}", "Let me add 2 and 3.", "`add(2, 3)` is a call", "add"])
@pytest.mark.parametrize("tools", [[TOOL], None])
def test_the_model_s_own_calls_and_other_texts_are_plain(tmp_path, caplog, text, tools):
    caplog.clear()
    unlearned = FIVE | {"content": ELSEWHERE["xml"], "weight": 0}
    messages = [ASK, unlearned, ASK, FIVE | {"content": text}]
    read(tmp_path, {"messages": messages, "tools": tools}, parsers=PARSERS)
    assert "notation" not in caplog.text


def test_equal_rows_and_columns_without_a_reader_are_said(tmp_path, caplog):
    row = {"messages": [HI, HELLO], "source": "web", "rejected": "Go"}
    read(tmp_path, row, row)
    assert "1 × row like an earlier one" in warnings(caplog)
    assert "columns that are not read: rejected, source" in warnings(caplog)


def test_fields_of_messages_that_nothing_reads_are_said(tmp_path, caplog):
    odd = {**HELLO, "thought": "Hm.", "ignore": True, "refusal": None, "annotations": []}
    read(tmp_path, {"messages": [HI, odd]})
    assert "fields of messages that are not read: ignore, thought" in warnings(caplog)


def test_a_tag_that_the_prompt_ends_with_is_said(tmp_path, caplog):
    opened = TEMPLATE.replace("assistant\n' }}", "assistant\n<think>' }}")
    written = "('<think>' if m.role == 'assistant' else '') ~ (m.content or '')"
    chat = chat_of(tmp_path, written, opened)
    read(tmp_path, {"messages": [HI, {**HELLO, "content": "<think>Hm.</think>Hello"}]}, chat=chat)
    assert "reply that begins with <think>, with which its prompt ends" in warnings(caplog)


def test_empty_arguments_are_none(tmp_path):
    none, empty = read(tmp_path, *({"messages": [ASK, calling(said)]} for said in ({}, "")))
    assert learned([empty]) == learned([none])


def test_exported_rows_are_read_without_a_word(tmp_path, caplog):
    about = {"reward": 1.0, "task_id": "math1-train-0-0", "env": "math", "split": "train",
             "episode_id": "g0", "policy_versions": [0]}  # fmt: skip
    with caplog.at_level(logging.WARNING):
        read(tmp_path, PLAIN | about)
    assert not caplog.records


TURN = "{{ '<|im_start|>' ~ m.role ~ '\n' ~ CONTENT ~ '<|im_end|>\n' }}"
TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\n' ~ (tools | tojson) ~ '<|im_end|>\n' }}{% endif %}"
    "{%- for m in messages %}" + TURN + "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SILENT = "(m.content or '')"
FIRST = "((m.content or '') if not m.tool_calls else (m.tool_calls[0].function | tojson))"
NAMES = "(m.content or '') ~ ((m.tool_calls or []) | map(attribute='function.name') | join(' '))"
CUT = "((m.content or '') if m.role != 'assistant' else m.content[:3])"
LOST = "(m.content or '') | replace('It is 5', '')"
CHANGED = "(m.content or '') | replace('is 5', 'is')"


def chat_of(tmp_path, content, template=TEMPLATE) -> ChatFormat:
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(template.replace("CONTENT", content))
    return ChatFormat.load(folder)


TWICE = calling(tool_calls=[*CALLS, {**CALLS[0], "id": "call_1_1"}])


@cases(
    "content, reply, said",
    [
        (SILENT, calling(), "does not write the call 'add'"),
        (SILENT, calling(content="I will add 2 and 3: add"), "does not write the call 'add'"),
        (NAMES, calling(), "does not write the argument of a call '2'"),
        (NAMES, calling(content="2 and 3"), "does not write the argument of a call '2'"),
        (FIRST, TWICE, "does not write the call 'add'"),
        (CUT, FIVE, "does not write the assistant's text 'It is 5'"),
        (LOST, FIVE, "writes nothing of the assistant's turn"),
    ],
    ids=range(7),
)
def test_a_template_that_does_not_write_the_reply_is_refused(tmp_path, content, reply, said):
    chat = chat_of(tmp_path, content)
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, {"messages": [ASK, reply, RESULT, FIVE], "tools": [TOOL]}, chat=chat)


def test_a_template_that_takes_arguments_as_text_gets_them_so(tmp_path):
    joined = "((m.content or '') if not m.tool_calls else m.tool_calls[0].function.name + ' ' + m.tool_calls[0].function.arguments)"  # noqa: E501
    chat = chat_of(tmp_path, joined)
    rows = read(tmp_path, {"messages": [ASK, calling()], "tools": [TOOL]}, chat=chat)
    assert learned(rows, chat) == 'add {"a": 2, "b": 3}<|im_end|>'


@cases(
    "content, reply, said",
    [
        (FIRST, calling(content="I add them"), "text next to calls is not learned"),
        (FIRST, {**FIVE, "reasoning_content": "Hm, let me see."}, "thoughts are not learned"),
        (CHANGED, FIVE, "whose text the chat template changes"),
    ],
    ids=range(3),
)
def test_a_template_that_drops_a_part_is_said(tmp_path, caplog, content, reply, said):
    chat = chat_of(tmp_path, content)
    read(tmp_path, {"messages": [ASK, reply], "tools": [TOOL]}, chat=chat)
    assert f"{said}" in warnings(caplog)


# ------------------------------------------------------------------ held-out tasks
def held_out(env="math", **tasks) -> HeldOut:
    return HeldOut(env, frozenset(tasks.items()) or frozenset({("math", "math1-eval-0-0")}))


EVALUATED = {"task_id": "math1-eval-0-0", "split": "eval", "env": "math"}


@cases(
    "about",
    [
        EVALUATED,
        {**EVALUATED, "split": "train"},
        {"task_id": "math1-eval-0-0"},
        {**EVALUATED, "env": "math-v0"},
        {**EVALUATED, "task_id": "math/math1-eval-0-0"},
        {**EVALUATED, "task_id": "math/math1-eval-0-0", "env": "mix:math=2,tools=1"},
    ],
    ids=range(6),
)
def test_an_episode_of_an_evaluated_task_is_refused(tmp_path, about):
    with pytest.raises(ConfigError, match=r"which this run evaluates.*--eval\.split=train"):
        read(tmp_path, {"messages": [HI, HELLO]} | about, held_out=held_out())


def test_other_held_out_tasks_are_said(tmp_path, caplog):
    row = {"messages": [HI, HELLO]}
    for about in ({"env": "tools"}, {"task_id": "math1-train-0-0", "split": "train"}):
        read(tmp_path, row | EVALUATED | about, held_out=held_out())
    assert not caplog.records
    read(tmp_path, row | EVALUATED | {"task_id": "math1-eval-5-0"}, held_out=held_out())
    assert "row of a held-out task of math (split eval)" in warnings(caplog)


def test_the_held_out_tasks_of_a_run_are_known_by_id_and_text(tmp_path, caplog):
    config = Config()
    tasks = HeldOut.of(config.env, config.rollout, EvalConfig(num_tasks=4))
    task = MathEnv.task_source("eval", seed=0)[2]
    assert ("math", task.id) in tasks.tasks
    question = {"role": "user", "content": f"Please: {task.data['question'].upper()} Think."}
    read(tmp_path, {"messages": [HI, HELLO]}, held_out=tasks)
    assert not caplog.records
    ids = CHAT.encode(question["content"])
    read(
        tmp_path, {"messages": [question, HELLO]}, {"input_ids": ids, "labels": ids}, held_out=tasks
    )
    assert "2 × row with the text of a task that this run evaluates" in warnings(caplog)
    none = HeldOut.of(config.env, config.rollout, EvalConfig(num_tasks=0))
    assert (none.env, none.tasks) == ("math", frozenset())
