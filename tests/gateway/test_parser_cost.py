"""Time is linear in the text, whatever the text and however it comes."""

import time

import pytest

from agentgym_rl.gateway.parsers import (
    HermesParser,
    Llama3JsonParser,
    Qwen3XmlParser,
    ResponseTemplate,
    ResponseTemplateParser,
    TextParser,
    ThinkParser,
)

SPEC = {
    "start_anchor": "A",
    "fields": {
        "reasoning": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"function": "{content}"},
        },
        "content": {},
    },
}


@pytest.fixture(scope="module")
def makers():
    template = ResponseTemplate(SPEC)
    return {
        "hermes": HermesParser,
        "qwen3_xml": lambda: Qwen3XmlParser([]),
        "llama3_json": Llama3JsonParser,
        "think": lambda: ThinkParser(HermesParser(), opened=True),
        "think-text": lambda: ThinkParser(TextParser(), opened=False),
        "response_template": lambda: ResponseTemplateParser(template, [], "A"),
    }


FAMILIES = ["hermes", "qwen3_xml", "llama3_json", "think", "think-text", "response_template"]
HOSTILE = {
    "words": "so it goes ",
    "spaces": " ",
    "angles": "<",
    "half_tags": "</tool_call",
    "open": "<tool_call>",
    "close": "</tool_call>",
    "quotes": '<tool_call>"',
    "escapes": '<tool_call>"</tool_call>\\"',
    "broken": '<tool_call>"</tool_call>\n',
    "values": "<tool_call><parameter=x></tool_call>",
    "unended": "<tool_call>{",
    "functions": "<function=f></function> ",
    "objects": '{"name":"f","parameters":{}};',
    "brackets": '{"a":[',
    "tags": "<|python_tag|>{",
    "thoughts": "<think></think>",
}


def _seconds(make, text, *, by_character):
    parser, start = make(), time.process_time()
    for piece in text if by_character else [text]:
        parser.feed(piece)
    parser.finish()
    return time.process_time() - start


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", HOSTILE)
def test_ten_times_the_text_takes_about_ten_times_as_long(makers, family, text):
    short, long = ((HOSTILE[text] * size)[:size] + "x" for size in (10_000, 100_000))
    first = min(_seconds(makers[family], short, by_character=False) for _ in range(3))
    second = _seconds(makers[family], long, by_character=False)
    assert second < 40 * first + 0.1  # 100 times, were it quadratic


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["words", "spaces", "half_tags", "quotes", "unended", "values"])
def test_so_it_does_in_single_characters(makers, family, text):
    short, long = ((HOSTILE[text] * size)[:size] for size in (2_000, 20_000))
    first = min(_seconds(makers[family], short, by_character=True) for _ in range(3))
    second = _seconds(makers[family], long, by_character=True)
    assert second < 40 * first + 0.1
    assert second < 1.5  # 0.05 to 0.3 when measured
