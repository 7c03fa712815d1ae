"""Which parser a model gets: what its chat template writes says it."""

import asyncio
import functools
import json
import logging

import pytest
from arl_endpoints.session import StreamedMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from reading import read, tool
from tokenizers import Tokenizer
from wild import shipped

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import ConfigError
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gateway.parsers import readers_of
from agentgym_rl.gateway.parsers.families import detect
from agentgym_rl.gateway.template.template import ChatTemplate
from agentgym_rl.models import BUNDLED_MODELS
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.call_formats import TEMPLATES, TURN, WRITE, chat_of
from tests.kit.cases import cases

SHOWS = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
JSON = """\
{{- 'BEFORE{"name": "' ~ c.function.name ~ '", "KEY": ' ~ (c.function.arguments | tojson) ~ '}' }}
{{- 'AFTER' }}"""


def _json(before, key, after):
    return JSON.replace("BEFORE", before).replace("KEY", key).replace("AFTER", after)


TAGGED = _json("<|python_tag|>", "parameters", "")
FOREIGN = _json("[PLUGIN]", "arguments", "")
KEYS = "{{- '<tool_call>' ~ c.function.name ~ '\\n<arg_key>text</arg_key></tool_call>' }}"
OPENED = "('<think></think>' if m.content else '') + (m.content or '')"
DEFAULTS = GatewayConfig()
RESPONSE = {"start_anchor": "<|im_start|>assistant\n", "fields": {"content": {}}}


def _chat(source, config=DEFAULTS, **options):
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    return ChatFormat(tokenizer, ChatTemplate(source, special_tokens={}, **options), [2], config)


@cases("family", TEMPLATES)
def test_the_family_that_reads_back_what_the_template_writes(family):
    assert detect(_chat(TURN.replace("CALL", TEMPLATES[family]))) == family.partition(" ")[0]


@cases(
    "source, family",
    [
        (TURN.replace("CALL", TAGGED), "llama3_json"),
        (TURN.replace("(m.content or '')", OPENED).replace("CALL", TEMPLATES["hermes"]), "hermes"),
        (TURN.replace("CALL", FOREIGN), "none"),
        (TURN.replace("CALL", KEYS), "none"),
        (SHOWS + TURN.replace("CALL", ""), "none"),
        (SHOWS + TURN.replace("CALL", "") + "{# <tool_call>\n<function=f> #}", "qwen3_xml"),
        (SHOWS + TURN.replace("CALL", "") + "{# <tool_call> #}", "hermes"),
        (TURN.replace("CALL", "") + "{# <tool_call>\n<function=f> #}", "hermes"),
        (TURN.replace("CALL", "{{ raise_exception('none') }}") + "{# <tool_call> #}", "hermes"),
        (TURN.replace("CALL", FOREIGN) + "{# <tool_call> #}", "none"),
    ],
    ids=[
        "tagged",
        "opened",
        "foreign",
        "glm",
        "ignored",
        "xml-said",
        "said",
        "as-text",
        "refused",
        "foreign-said",
    ],
)
def test_where_no_family_of_ours_reads_it_back(source, family):
    assert detect(_chat(source)) == family


@cases("source", [TURN.replace("CALL", FOREIGN), SHOWS + TURN.replace("CALL", "")])
def test_a_response_template_comes_next(source):
    chat = _chat(source, response_template=RESPONSE)
    assert detect(chat) == "response_template"


REAL = {
    "deepseekv3": "deepseek_v3",
    "deepseek_r1_distill": "hermes",  # it hides tools, and calls of messages with content
    "gemma4": "gemma4",
    "glm4moe": "glm",
    "gptoss": "gpt_oss",
    "lfm2_v2": "lfm2",
    "llama3_1": "llama3_json",
    "nemotron_3_nano": "qwen3_xml",
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_6": "qwen3_xml",
}
"""Templates of models, as TRL ships them, and their families."""


def test_templates_of_real_models_are_of_their_families():
    sources = {file.stem: file.read_text() for file in shipped("trl/chat_templates")}
    found = {name: detect(_chat(sources[name])) for name in REAL}
    assert found == REAL


@cases("name", BUNDLED_MODELS)
def test_the_bundled_models_are_hermes_without_thoughts(name, caplog):
    caplog.set_level(logging.DEBUG)
    readers_of(ChatFormat.load(BUNDLED_MODELS[name]), GatewayConfig())
    assert "tool calls are read as hermes, thoughts as content" in caplog.text


@pytest.mark.parametrize(("tag", "how"), [("</think>", "reasoning"), ("", "content")])
def test_thoughts_are_read_where_the_template_knows_their_tags(tag, how, caplog):
    caplog.set_level(logging.DEBUG)
    readers_of(_chat(f"{TURN}{{# {tag} #}}"), GatewayConfig())
    assert f"thoughts as {how}" in caplog.text


def test_a_response_template_is_found_in_the_tokenizer_config(tmp_path):
    for file in BUNDLED.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(TURN.replace("CALL", FOREIGN))
    config = json.loads((BUNDLED / "tokenizer_config.json").read_text())
    config["response_template"] = RESPONSE
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert detect(ChatFormat.load(tmp_path)) == "response_template"


def test_a_response_template_that_is_not_there_is_refused(chat):
    with pytest.raises(ConfigError, match="has none; allowed: auto, "):
        readers_of(chat, GatewayConfig(tool_parser="response_template"))


def test_a_response_template_says_itself_what_a_thought_is():
    chat = _chat(TURN, response_template=RESPONSE)
    config = GatewayConfig(tool_parser="response_template", reasoning_parser="none")
    with pytest.raises(ConfigError, match=r"reasoning_parser is 'none'.*allowed: auto"):
        readers_of(chat, config)


IN_SYSTEM = "{% if tools and messages[0].role == 'system' %}{{ tools }}{% endif %}"


@cases(
    "source, parser, said",
    [
        (TURN, "hermes", ["hidden_tools is 'omit'"]),
        (TURN, "none", ["hidden_tools is 'omit'"]),
        (TURN, "auto", ["no format of tool calls", "hidden_tools is 'omit'"]),
        (SHOWS + TURN, "auto", ["no format of tool calls"]),
        (SHOWS + TURN, "hermes", []),
        (IN_SYSTEM + TURN, "hermes", []),
    ],
    ids=range(6),
)
def test_tools_that_cannot_work_with_the_model_are_warned_of_once(source, parser, said, caplog):
    config = GatewayConfig(tool_parser=parser, hidden_tools="omit")
    open_parser, _ = readers_of(_chat(source.replace("CALL", ""), config), config)
    open_parser(None, "")
    assert not caplog.records
    for _ in range(2):
        open_parser([tool(n={"type": "integer"})], "")
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == len(said)
    assert all(text in message for text, message in zip(said, found, strict=True))


@cases("name", ["tool_parser", "reasoning_parser"])
def test_a_parser_nobody_knows_is_refused_with_those_there_are(name):
    with pytest.raises(ValidationError, match=r"'auto', .*'none'"):
        GatewayConfig.model_validate({name: "jinja"})


def test_the_named_family_reads_the_replies(stage, spell, words):
    text = "<tool_call>\n<function=f>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>"
    config = GatewayConfig(tool_parser="qwen3_xml")
    scene = stage([spell.canonical(text + words.END)], config=config)
    tools = [tool(n={"type": "integer"})]
    message = asyncio.run(scene.post(scene.open(), messages=words.FIRST, tools=tools)).message
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"n": 7}'}


ARGUMENTS = {"text": "a\n\u00e9 </b>", "count": 7}
TYPED = [tool(text={"type": "string"}, count={"type": "integer"})]


@cases("name", WRITE)
@cases("stream", [False, True], ids=["whole", "stream"])
def test_an_episode_in_any_family_is_one_exact_row(stage, words, name, stream):
    chat = chat_of(name)
    call, end = WRITE[name]([("f", ARGUMENTS)]), words.END
    answer = words.ANSWER
    if name == "gpt_oss":
        call, end = call.removesuffix("<|call|>"), "<|call|>"
        answer = f"<|channel|>final<|message|>{answer}"
    replies = [chat.encode(text + end) for text in (call, call, answer)]
    scene = stage(replies, chat=chat)
    session, messages = scene.open(), list(words.FIRST)
    for _ in replies:
        answered = asyncio.run(scene.post(session, messages=messages, tools=TYPED, stream=stream))
        message = _added_up(answered.events) if stream else answered.message
        messages += [message, *words.observe(message, "ok")]
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    found = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls
    ]
    assert found == [("f", ARGUMENTS)] * 2
    assert [m["content"] for m in messages if m["role"] == "assistant"][-1] == words.ANSWER
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert (record.counters["forks"], record.counters["malformed_calls"]) == (0, 0)


VALUES = st.fixed_dictionaries(
    {
        "text": st.text("ab1 \"'{}[](),:\u00e9\U0001f600", max_size=8).filter(
            lambda text: text == text.strip()
        )
    },
    optional={
        "count": st.integers(-9, 9),
        "flag": st.booleans(),
        "list": st.lists(st.integers(0, 9) | st.text("a\"'{ \u00e9", max_size=4), max_size=3),
        "object": st.dictionaries(st.sampled_from("xyz"), st.none() | st.integers(0, 9)),
    },
)
SCHEMAS = [
    tool(
        text={"type": "string"},
        count={"type": "integer"},
        flag={"type": "boolean"},
        list={"type": "array"},
        object={"type": "object"},
    )
]


@functools.cache
def _readers(name):
    return readers_of(chat_of(name), GatewayConfig())[0]


@pytest.mark.parametrize("name", WRITE)
@settings(max_examples=25, deadline=None)
@given(arguments=st.lists(VALUES, min_size=1, max_size=3))
def test_what_the_template_writes_of_calls_is_read_back(name, arguments):
    chat = chat_of(name)
    calls = [
        {
            "type": "function",
            "id": f"call_0_{index}:functions.f:{index}",
            "function": {"name": "f", "arguments": json.dumps(each, ensure_ascii=False)},
        }
        for index, each in enumerate(arguments[: 1 if name == "gpt_oss" else None])
    ]
    opening = {"role": "user", "content": "."}
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    head = chat.render([opening], SCHEMAS, add_generation_prompt=True)
    text = chat.render([opening, said], SCHEMAS, add_generation_prompt=False)
    assert text.startswith(head)
    text = text.removeprefix(head).removesuffix("<|im_end|>\n")
    shown = read(_readers(name)(SCHEMAS, head), text)
    assert [(call.name, call.malformed) for call in shown.calls] == [("f", False)] * len(calls)
    assert [json.loads(call.arguments) for call in shown.calls] == arguments[: len(calls)]
    assert shown.content == ""


def _added_up(events):
    whole = StreamedMessage()
    for event in events[:-1]:
        whole.add(event)
    return whole.whole()


def test_tools_that_nobody_will_read_calls_of_are_warned_of_once(stage, spell, words, caplog):
    chat = _chat(TURN.replace("CALL", FOREIGN))
    scene = stage([spell.canonical(words.CALL + words.END)] * 2, chat=chat)
    for _ in range(2):
        answer = asyncio.run(
            scene.post(scene.open(), messages=words.FIRST, tools=[words.CALCULATOR])
        )
        assert answer.message == {"role": "assistant", "content": words.CALL}
    assert caplog.text.count("gateway.tool_parser") == 1
