"""Which parser a model gets: what its chat template writes says it."""

import asyncio
import json
import logging

import pytest
from pydantic import ValidationError
from reading import tool
from tokenizers import Tokenizer

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.gateway.parsers import readers_of
from agentgym_rl.gateway.parsers.families import detect
from agentgym_rl.gateway.relay.session import StreamedMessage
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gateway.template.template import ChatTemplate
from agentgym_rl.models.resolve import BUNDLED, BUNDLED_MODELS
from tests.kit.cases import cases

TURN = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
    {%- for c in m.tool_calls or [] %}CALL{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
JSON = """\
{{- 'BEFORE{"name": "' ~ c.function.name ~ '", "KEY": ' ~ (c.function.arguments | tojson) ~ '}' }}
{{- 'AFTER' }}"""
XML = """\
{{- '<tool_call>\\n<function=' ~ c.function.name ~ '>\\n' }}
{%- for key, value in c.function.arguments.items() %}
    {{- '<parameter=' ~ key ~ '>\\n' ~ value ~ '\\n</parameter>\\n' }}
{%- endfor %}{{- '</function>\\n</tool_call>' }}"""


def _json(before, key, after):
    return JSON.replace("BEFORE", before).replace("KEY", key).replace("AFTER", after)


CALLS = {
    "hermes": _json("<tool_call>\\n", "arguments", "\\n</tool_call>"),
    "qwen3_xml": XML,
    "llama3_json": _json("", "parameters", ""),
}
TAGGED = _json("<|python_tag|>", "parameters", "")
FOREIGN = _json("[TOOL_CALLS]", "arguments", "")
KEYS = "{{- '<tool_call>' ~ c.function.name ~ '\\n<arg_key>text</arg_key></tool_call>' }}"
OPENED = "('<think></think>' if m.content else '') + (m.content or '')"
RESPONSE = {"start_anchor": "<|im_start|>assistant\n", "fields": {"content": {}}}


def _chat(source, **options):
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    return ChatFormat(tokenizer, ChatTemplate(source, special_tokens={}, **options), [2])


@cases("family", CALLS)
def test_the_family_that_reads_back_what_the_template_writes(family):
    assert detect(_chat(TURN.replace("CALL", CALLS[family]))) == family


@cases(
    "source, family",
    [
        (TURN.replace("CALL", TAGGED), "llama3_json"),
        (TURN.replace("(m.content or '')", OPENED).replace("CALL", CALLS["hermes"]), "hermes"),
        (TURN.replace("CALL", FOREIGN), "none"),
        (TURN.replace("CALL", KEYS), "none"),
        (TURN.replace("CALL", ""), "none"),
        (TURN.replace("CALL", "") + "{# <tool_call>\n<function=f> #}", "qwen3_xml"),
        (TURN.replace("CALL", "") + "{# <tool_call> #}", "hermes"),
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
        "refused",
        "foreign-said",
    ],
)
def test_where_no_family_of_ours_reads_it_back(source, family):
    assert detect(_chat(source)) == family


@cases("call", [FOREIGN, ""])
def test_a_response_template_comes_next(call):
    chat = _chat(TURN.replace("CALL", call), response_template=RESPONSE)
    assert detect(chat) == "response_template"


@cases("name", BUNDLED_MODELS)
def test_the_bundled_models_are_hermes_without_thoughts(name, caplog):
    caplog.set_level(logging.INFO)
    readers_of(ChatFormat.load(BUNDLED_MODELS[name]), GatewayConfig())
    assert "tool calls are read as hermes, thoughts as content" in caplog.text


@pytest.mark.parametrize(("tag", "how"), [("</think>", "reasoning"), ("", "content")])
def test_thoughts_are_read_where_the_template_knows_their_tags(tag, how, caplog):
    caplog.set_level(logging.INFO)
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


SHOWS = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
IN_SYSTEM = "{% if tools and messages[0].role == 'system' %}{{ tools }}{% endif %}"


@cases(
    "source, parser, said",
    [
        (TURN, "hermes", ["never told of them"]),
        (TURN, "none", ["never told of them"]),
        (TURN, "auto", ["no format of tool calls", "never told of them"]),
        (SHOWS + TURN, "auto", ["no format of tool calls"]),
        (SHOWS + TURN, "hermes", []),
        (IN_SYSTEM + TURN, "hermes", []),
    ],
    ids=range(6),
)
def test_tools_that_cannot_work_with_the_model_are_warned_of_once(source, parser, said, caplog):
    chat = _chat(source.replace("CALL", ""))
    open_parser, _ = readers_of(chat, GatewayConfig(tool_parser=parser))
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


ARGUMENTS = '{"text": "a\\n\u00e9 </b>", "count": 7}'
WRITTEN = {
    "hermes": f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "qwen3_xml": "<tool_call>\n<function=f>\n<parameter=text>\na\n\u00e9 </b>\n</parameter>\n"
    "<parameter=count>\n7\n</parameter>\n</function>\n</tool_call>",
    "llama3_json": f'{{"name": "f", "parameters": {ARGUMENTS}}}',
}


@cases("family", CALLS)
@cases("stream", [False, True], ids=["whole", "stream"])
def test_an_episode_in_any_family_is_one_exact_row(stage, spell, words, family, stream):
    chat = _chat(TURN.replace("CALL", CALLS[family]))
    replies = [WRITTEN[family], WRITTEN[family], words.ANSWER]
    scene = stage([spell.bytewise(reply + words.END) for reply in replies], chat=chat)
    session, tools = scene.open(), [tool(text={"type": "string"}, count={"type": "integer"})]
    messages = list(words.FIRST)
    for _ in replies:
        answer = asyncio.run(scene.post(session, messages=messages, tools=tools, stream=stream))
        message = _added_up(answer.events) if stream else answer.message
        messages += [message, *words.observe(message, "ok")]
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    assert [call["function"] for call in calls] == [{"name": "f", "arguments": ARGUMENTS}] * 2
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert (record.counters["forks"], record.counters["malformed_calls"]) == (0, 0)


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
