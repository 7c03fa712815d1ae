"""What is particular to single families; test_parsers_golden.py has what all of them share."""

import asyncio
import json
from functools import partial

import pytest
from arl_parsers.harmony import HarmonyParser
from arl_parsers.literals import read_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import CUTS, Read, check_cuts, read, texts, tool

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import ConfigError, in_order
from agentgym_rl.gateway import ChatFormat, Reasoning, ToolCall, call_formats
from agentgym_rl.gateway.parsers import readers_of
from agentgym_rl.gateway.parsers.think import ThinkParser, Thoughts
from agentgym_rl.gateway.template.template import ChatTemplate
from tests.kit.call_formats import WRITE, chat_of
from tests.kit.cases import cases

FORMATS, THOUGHTS = call_formats(), in_order("thoughts", of=Thoughts)

TOOLS = [tool(s={"type": "string"}, i={"type": "integer"}, b={"type": "boolean"})]
CALL = ToolCall("f", '{"s": "é"}')


def _read(family, text):
    return read(FORMATS[family](TOOLS), text)


def test_the_config_names_every_family():
    [names] = GatewayConfig.model_fields["tool_parser"].metadata
    assert names.names() == ["auto", *FORMATS, "response_template", "none"]
    [names] = GatewayConfig.model_fields["reasoning_parser"].metadata
    assert names.names() == ["auto", *THOUGHTS, "none"]


PIECES = [
    *(write([("f", {"s": "é"})]) for write in WRITE.values()),
    *(text[: len(text) // 2] for text in (write([("f", {"i": 1})]) for write in WRITE.values())),
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>"),
    *("Here is my thought process:", "Here's my response:", "<|channel>thought\n", "<channel|>"),
    *("[ARGS]", "[CALL_ID]", "[", "{", "}", "]", '"', "'", "\\", "\n", " ", "(", ")", "<", ":"),
    *("<|start|>assistant", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<｜tool▁sep｜>"),
    *(
        "</tool_call>",
        "</invoke>",
        "</parameter>",
        "</arg_value>",
        "<escape>",
        "hi",
        "<|python_end|>",
    ),
]


@pytest.mark.parametrize("family", FORMATS)
@settings(max_examples=60, deadline=None)
@given(text=texts(*PIECES), cuts=CUTS, thoughts=st.sampled_from([None, *THOUGHTS]))
def test_streaming_changes_nothing(family, text, cuts, thoughts):
    def make():
        parser = FORMATS[family](TOOLS)
        if thoughts is None:
            return parser
        return ThinkParser(parser, opened=False, thoughts=THOUGHTS[thoughts])

    check_cuts(make, text, cuts)


@cases(
    "text, calls",
    [
        ('[TOOL_CALLS]f[CALL_ID]a1B2[ARGS]{"s": "é"}', (ToolCall("f", CALL.arguments, id="a1B2"),)),
        ('[TOOL_CALLS]f{"s": "é"}', (CALL,)),
        ('[TOOL_CALLS] f [ARGS] {"s": "é"}', (CALL,)),
        ('[TOOL_CALLS]f[ARGS]{"s": "é"}[TOOL_CALLS]f[ARGS]{"s": "é"}', (CALL, CALL)),
        ('[TOOL_CALLS] [{"arguments": {"s": "é"}, "name": "f"}]', (CALL,)),
        ('[TOOL_CALLS]{"name": "f", "arguments": {"s": "é"}}', (CALL,)),
        ('[TOOL_CALLS]f[ARGS]{"s": ][}', (ToolCall("f", 'f[ARGS]{"s": ][}', malformed=True),)),
        (
            '[TOOL_CALLS][{"name": "f", "arguments": {"s": "é"}}, {"name": "g"}]',
            (CALL, ToolCall("g", '{"name": "g"}', malformed=True)),
        ),
        (
            '[TOOL_CALLS]f[ARGS]{"s": 1[TOOL_CALLS]f[ARGS]{"s": "é"}',
            (ToolCall("f", 'f[ARGS]{"s": 1', malformed=True), CALL),
        ),
    ],
)
def test_mistral_in_all_its_versions(text, calls):
    assert _read("mistral", text) == Read("", calls)
    check_cuts(partial(FORMATS["mistral"], TOOLS), text, [2, 7, 1, 8, 2, 8])


@cases("name", ["mistral", "mistral (newer)", "granite", "phi4_mini (functools)", "gpt_oss"])
def test_where_no_tag_closes_a_call_the_end_of_the_turn_does(name):
    text = WRITE[name]([("f", {"s": "é"})]).removesuffix("<|call|>")[:-2]
    cut, ended = (FORMATS[name.partition(" ")[0]](TOOLS) for _ in range(2))
    assert [*cut.feed(text), *cut.finish()] == [text]
    [call] = [*ended.feed(text), *ended.finish(ended=True)]
    assert isinstance(call, ToolCall)
    assert (call.name, call.malformed) == ("f", True)


@pytest.mark.parametrize("stops", [True, False], ids=["ended", "cut"])
def test_a_turn_tells_its_parser_whether_it_ended(stage, words, stops):
    chat, text = chat_of("mistral (newer)"), '[TOOL_CALLS]f[ARGS]{"s": "é'
    ids = chat.encode(text + (words.END if stops else " and so on"))
    scene = stage([ids], chat=chat)
    session = scene.open(max_tokens=len(ids) - (not stops))
    message = asyncio.run(scene.post(session, messages=words.FIRST, tools=TOOLS)).message
    assert bool(message.get("tool_calls")) == stops
    counters = scene.gateway.close_session(session).counters
    assert counters["malformed_calls"] == stops


@cases(
    "family, text, name",
    [
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}<｜tool▁call▁end｜>", ""),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{,}<｜tool▁call▁end｜>", "f"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f {}<｜tool▁call▁end｜>", ""),
        ("kimi_k2", "<|tool_call_begin|>f:0<|tool_call_argument_begin|><|tool_call_end|>", "f"),
        ("glm", "<tool_call>f(1)</tool_call>", "f"),
        ("glm", "<tool_call>f<arg_key>s</arg_key></tool_call>", "f"),
        ("glm", "<tool_call>{}</tool_call>", ""),
        ("minimax_m2", "<invoke name=f></invoke>", ""),
        ("minimax_m2", '<invoke name="f"><parameter name="s">1</invoke>', "f"),
        ("granite", "<tool_call>[f()]", ""),
        ("functiongemma", "<start_function_call>f{}<end_function_call>", "f"),
        ("gemma4", '<|tool_call>call:f{s:<|"|>a<|"|>b}<tool_call|>', "f"),
        ("gemma4", "<|tool_call>call:f{s:{1:2}<tool_call|>", "f"),
        ("pythonic", "[f(1)]", "f"),
        ("pythonic", "[f(1]", "f"),
        ("pythonic", "[f(s=open('x'))]", "f"),
    ],
)
def test_a_malformed_call_is_still_one_with_all_of_its_text(family, text, name):
    [call] = _read(family, text).calls
    assert (call.name, call.malformed) == (name, True)
    assert call.arguments in text


def test_a_section_without_a_call_is_content():
    for name in ("deepseek_v31", "kimi_k2", "minimax_m2"):
        text = WRITE[name]([])
        assert _read(name, text) == Read(text)
        assert _read(name, f"{text} So.") == Read(f"{text} So.")


def test_calls_of_a_section_go_out_one_by_one():
    parser, text = FORMATS["kimi_k2"](TOOLS), WRITE["kimi_k2"]([("f", {"s": "é"})] * 2)
    first = text.index("<|tool_call_end|>") + len("<|tool_call_end|>")
    assert parser.feed(text[:first]) == [ToolCall("f", '{"s": "é"}', id="functions.f:0")]
    assert parser.feed(text[first:]) == [ToolCall("f", '{"s": "é"}', id="functions.f:1")]
    assert parser.finish() == []


KIMI = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'tool' %}{{ '## Return of ' ~ m.tool_call_id ~ '\\n' }}{% endif %}
    {{- m.content or '' }}
    {%- for c in m.tool_calls or [] %}
        {{- '<|tool_call_begin|>' ~ c.id ~ '<|tool_call_argument_begin|>' }}
        {{- (c.function.arguments | tojson) ~ '<|tool_call_end|>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


@pytest.mark.parametrize("keeps", [True, False], ids=["continued", "rendered"])
def test_an_id_that_the_model_wrote_is_in_the_answer_to_the_call(stage, words, keeps):
    tokenizer = chat_of("kimi_k2")._tokenizer
    chat = ChatFormat(tokenizer, ChatTemplate(KIMI, special_tokens={}), [2])
    calls = WRITE["kimi_k2"]([("f", {"s": "é"}), ("f", {"i": 1})])
    scene = stage([chat.encode(calls + words.END), chat.encode("So." + words.END)], chat=chat)
    session = scene.open()
    message = asyncio.run(scene.post(session, messages=words.FIRST, tools=TOOLS)).message
    ids = [call["id"] for call in message["tool_calls"]]
    assert ids == ["call_0_0:functions.f:0", "call_0_1:functions.f:1"]
    asked = [*words.FIRST, message, *words.observe(message, "ok")]
    asked = asked if keeps else [*asked[1:]]
    asyncio.run(scene.post(session, messages=asked, tools=TOOLS))
    prompt = chat.text(scene.engine.journal[-1].prompt)
    assert prompt.count("## Return of functions.f:0") == 1
    assert prompt.count("<|tool_call_begin|>functions.f:1<") == 1
    assert scene.gateway.close_session(session).counters["forks"] == (not keeps)


@cases("id, shown", [("call_0_0:a1B2c3D4e", "a1B2c3D4e"), ("call_0_0", None), ("x:y", None)])
def test_mistral_gets_its_own_id_or_one_of_nine_letters(id, shown):
    [call] = _read("mistral", '[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"s": "é"}').calls
    assert call.id == "a1B2c3D4e"
    function = {"name": call.name, "arguments": call.arguments}
    said = [{"id": id, "type": "function", "function": function}]
    asked = [{"role": "user", "content": "."}, {"role": "assistant", "content": ""}]
    text = chat_of("mistral").render([asked[0], {**asked[1], "tool_calls": said}], TOOLS)
    written = json.loads(text.partition("[TOOL_CALLS]")[2].partition("<|im_end|>")[0])[0]["id"]
    assert len(written) == 9
    assert written == (shown or written)
    assert (written == "a1B2c3D4e") == (shown is not None)


@cases(
    "written, value",
    [
        ("'a'", '"a"'),
        ('"it\'s"', '"it\'s"'),
        (r"'\'\n\u00e9\x41'", json.dumps("'\né" + "A", ensure_ascii=False)),
        (r"'\ud83d\ude00 \ud83d'", json.dumps("😀 \ufffd", ensure_ascii=False)),
        ("'a\nb'", '"a\\nb"'),
        ("-2.50", "-2.50"),
        ("+5", "5"),
        ("1_000", "1000"),
        ("0x1F", "31"),
        ("12345678901234567890", "12345678901234567890"),
        ("True", "true"),
        ("none", None),
        ("None", "null"),
        ("(1, [2,], {})", "[1, [2], {}]"),
        ("{'a': {'b': null}}", '{"a": {"b": null}}'),
        ("{1: 2}", None),
        ("1 + 2", None),
        ("'a' 'b'", None),
        ("x", None),
        ("[1", None),
        ("[" * 100 + "]" * 100, None),
        ("1j", None),
        ("01", None),
        ("b'a'", None),
    ],
)
def test_python_values_become_json(written, value):
    found = read_calls(f"[a.f(s={written})]")
    assert found == (None if value is None else [ToolCall("a.f", f'{{"s": {value}}}')])


@cases(
    "written, value",
    [
        ("<escape>a,{}<escape>", '"a,{}"'),
        ("<escape><escape>", '""'),
        ("<escape>5<escape>", '"5"'),
        ("5", '"5"'),
        ("{a:5,b:[true,<escape>x<escape>]}", '{"a": 5, "b": [true, "x"]}'),
        ("{<escape>a b<escape>:null}", '{"a b": null}'),
        ("plain words", '"plain words"'),
    ],
)
def test_gemmas_values_become_json(written, value):
    text = f"<start_function_call>call:f{{s:{written}}}<end_function_call>"
    assert _read("functiongemma", text) == Read("", (ToolCall("f", f'{{"s": {value}}}'),))


def test_values_without_quotes_have_the_type_of_the_schema():
    text = "<start_function_call>call:f{s:5,i:5,b:True,x:5}<end_function_call>"
    [call] = _read("functiongemma", text).calls
    assert call.arguments == '{"s": "5", "i": 5, "b": true, "x": 5}'


FINAL, HM = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>Hm.<|end|>"
NEXT = "<|start|>assistant"


@cases(
    "text, shown",
    [
        (f"{FINAL}So.", Read("So.")),
        (f"{HM}{NEXT}{FINAL}So.<|return|>", Read("So.", reasoning="Hm.")),
        (f"{HM}{NEXT}{HM}{NEXT}{FINAL}So.", Read("So.", reasoning="Hm.\nHm.")),
        (
            f"{HM}{NEXT} to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
            '{"s": "é"}<|call|>',
            Read("", (CALL,), "Hm."),
        ),
        (
            '<|channel|>commentary to=f json<|message|>{"s": "é"}<|end|>' + NEXT + FINAL + "So.",
            Read("So.", (CALL,)),
        ),
        (
            "<|channel|>analysis to=functions.f code<|message|>{,}<|call|>",
            Read("", (ToolCall("f", "{,}", malformed=True),)),
        ),
        ("<|channel|>commentary<|message|>Let me.<|end|>", Read("Let me.")),
        ("So.", Read("So.")),
        ("assistant", Read("assistant")),
        ("So <|constrain|> it is", Read("So <|constrain|> it is")),
        (f"{'long ' * 100}{FINAL}So.", Read("long " * 100 + "\nSo.")),
        (f"{FINAL}a <|message|> b", Read("a <|message|> b")),
        ("<|channel|>analysis<|message|>Hm", Read(reasoning="Hm")),
        ("<|channel|>final", Read("<|channel|>final")),
        ("", Read()),
    ],
)
def test_the_channels_of_gpt_oss(text, shown):
    assert read(HarmonyParser(TOOLS, f"x<|end|>{NEXT}"), text) == shown
    check_cuts(lambda: HarmonyParser(TOOLS, f"x<|end|>{NEXT}"), text, [3, 1, 4, 1, 5, 9, 2, 6])


def test_a_prompt_may_open_the_channel():
    parser = HarmonyParser(TOOLS, f"x<|end|>{NEXT}<|channel|>analysis<|message|>")
    assert parser.feed("Hm") == [Reasoning("Hm")]
    assert parser.feed(f"<|end|>{NEXT}{FINAL}So") == ["So"]


def test_without_tools_the_arguments_are_content():
    text = f'{HM}{NEXT}<|channel|>commentary to=functions.f json<|message|>{{"s": 1}}<|call|>'
    assert read(HarmonyParser(None), text) == Read('{"s": 1}', reasoning="Hm.")


def test_gpt_oss_says_itself_what_a_thought_is():
    config = GatewayConfig(tool_parser="gpt_oss", reasoning_parser="think")
    with pytest.raises(ConfigError, match=r"'gpt_oss' the format itself.*allowed: auto"):
        readers_of(chat_of("gpt_oss"), config)


def test_the_families_say_what_they_read(caplog):
    caplog.set_level("DEBUG")
    readers_of(chat_of("gpt_oss"), GatewayConfig())
    assert "read as gpt_oss" in caplog.text


@cases(
    "name, prompt_end, text, shown",
    [
        ("deepseek_r1", "assistant\n", "Hm.</think>So.", Read("So.", reasoning="Hm.")),
        ("deepseek_r1", "assistant\n", "<think>Hm.</think>So.", Read("So.", reasoning="Hm.")),
        ("deepseek_r1", "<think>\n\n</think>\n\n", "So.", Read("So.")),
        ("deepseek_r1", "assistant\n", "Hm.", Read(reasoning="Hm.")),
        ("mistral", "[/INST]", "[THINK]Hm.[/THINK]So.", Read("So.", reasoning="Hm.")),
        ("mistral", "[/INST]", "So.[/THINK]", Read("So.[/THINK]")),
        ("seed_oss", "<seed:think>", "Hm.</seed:think>So.", Read("So.", reasoning="Hm.")),
        ("gemma4", "model\n", "<|channel>thought\nHm.<channel|>So.", Read("So.", reasoning="Hm.")),
        (
            "granite",
            "",
            "Here's my thought process: Hm. Here is my response:\n\nSo.",
            Read("So.", reasoning="Hm."),
        ),
        ("granite", "", "Here is the answer.", Read("Here is the answer.")),
        ("granite", "", "Here", Read("Here")),
    ],
)
def test_thoughts_have_the_tags_of_the_family(name, prompt_end, text, shown):
    def make():
        tags = THOUGHTS[name]
        inner = FORMATS["hermes"](TOOLS)
        return ThinkParser(inner, opened=tags.opened(prompt_end), thoughts=tags)

    assert read(make(), text) == shown
    check_cuts(make, text, [3, 1, 4, 1, 5, 9, 2, 6])


@cases("name", [name for name in THOUGHTS if name != "deepseek_r1"])
def test_the_tags_of_the_template_say_which(name, caplog):
    caplog.set_level("DEBUG")
    said = "{% for m in messages %}{{ m.content }}{% endfor %}"
    source = f"{{# {THOUGHTS[name].closes[0]} #}}{said}"
    chat = ChatFormat(chat_of("granite")._tokenizer, ChatTemplate(source, special_tokens={}), [2])
    readers_of(chat, GatewayConfig())
    assert f"thoughts as reasoning ({name})" in caplog.text
