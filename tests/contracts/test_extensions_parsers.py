"""Formats of replies of other packages: the gateway reads and forces them like its own."""

import json
import sys

import pytest
from arl_parsers.calls_in_text import has_call
from pydantic import ValidationError
from tokenizers import Tokenizer

from agentgym_rl.cli import main as cli
from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import extensions
from agentgym_rl.gateway import ApiError, ChatFormat, Reasoning, ToolCall, readers_of
from agentgym_rl.gateway.request.reply_form import ReplyForm
from agentgym_rl.gateway.template.template import ChatTemplate
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.call_formats import TEMPLATES, TURN
from tests.kit.extension import install

FAMILY = '''
from agentgym_rl.gateway import (
    Calls, Frame, Grammars, Thoughts, block_format, malformed, object_grammar, parse_object
)

def read(block, tools):
    return [parse_object(block) or malformed(block)]

SQUARE = block_format(
    Frame({"[CALL]": "[/CALL]"}),
    read,
    grammar=Calls(object_grammar("arguments", "[CALL]", "[/CALL]")),
)
HMM = Thoughts(("<hmm>",), ("</hmm>",))

class Written(Grammars):
    """Grammars of theirs."""
    def of(self, form, prompt_end):
        return f"{self.model.family} after {self.model.thoughts.opens[0]}"
    def choices(self, grammar, tokens):
        return None

'''
POINTS = {
    "parsers": {"square": "theirs_square:SQUARE", "lost": "theirs_lost:LOST"},
    "thoughts": {"hmm": "theirs_square:HMM"},
    "grammars": {"written": "theirs_square:Written"},
}
CALL = '[CALL]{"name": "f", "arguments": {"x": 1}}[/CALL]'
WRITES = """{{- '[CALL]{"name": "' ~ c.function.name ~ '", "arguments": ' }}
{{- (c.function.arguments | tojson) ~ '}[/CALL]' }}"""
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FORM = ReplyForm(tools=[TOOL], param="tool_choice")


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """The package with the family is installed."""
    folder = install(tmp_path / "theirs", {"theirs_square": FAMILY}, POINTS)
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("theirs_square", None)


@pytest.fixture
def alone(monkeypatch):
    """The kernel without the extension of ours."""
    find = extensions.find_spec
    hidden = lambda name: None if name == "arl_parsers" else find(name)  # noqa: E731
    monkeypatch.setattr(extensions, "find_spec", hidden)
    extensions.forget_entry_points()
    yield
    monkeypatch.undo()
    extensions.forget_entry_points()


def _chat(call):
    source = TURN.replace("CALL", call) + "{# </hmm> #}"
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    return ChatFormat(tokenizer, ChatTemplate(source, special_tokens={}), [2])


@pytest.mark.parametrize(
    "config",
    [GatewayConfig(), {"tool_parser": "square", "reasoning_parser": "hmm"}],
    ids=["by the template", "by keys"],
)
def test_a_model_of_the_family_is_read(theirs, config):
    """A member that cannot be imported is no obstacle."""
    config = GatewayConfig.model_validate(config)
    parsers, grammars = readers_of(_chat(WRITES), config)
    parser = parsers([TOOL], "")
    events = [*parser.feed(f"<hmm>One.</hmm>So {CALL}"), *parser.finish(ended=True)]
    assert events == [Reasoning("One."), "So", ToolCall("f", '{"x": 1}')]
    assert grammars.of(FORM, "") == "square after <hmm>"


def test_its_calls_are_known_in_text(theirs):
    assert has_call(CALL, {"f"})


def test_its_names_are_behind_ours_and_listed(theirs, capsys):
    with pytest.raises(ValidationError, match=r"'auto', 'seed_oss', .*'square' or 'none'"):
        GatewayConfig.model_validate({"tool_parser": "squaer"})
    with pytest.raises(SystemExit):
        cli.main(["list", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    kinds = {row["kind"]: row["id"] for row in rows if not row["error"]}
    assert kinds["parser of calls"] == "square"
    assert (kinds["parser of thoughts"], kinds["grammars"]) == ("hmm", "written")


def test_ours_forces_calls_of_its_format(tmp_path, monkeypatch):
    points = {group: POINTS[group] for group in ("parsers", "thoughts")}
    monkeypatch.syspath_prepend(str(install(tmp_path / "x", {"theirs_square": FAMILY}, points)))
    _, grammars = readers_of(_chat(WRITES), GatewayConfig())
    assert '[CALL]{\\"name\\": \\"f\\"' in grammars.of(FORM, "")
    sys.modules.pop("theirs_square", None)


def test_without_ours_the_bundled_models_are_read(alone):
    parser = readers_of(_chat(TEMPLATES["hermes"]), GatewayConfig())[0]([TOOL], "")
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert [*parser.feed(text), *parser.finish()] == [ToolCall("f", "{}")]


def test_without_ours_what_is_missing_is_refused_with_its_package(alone, caplog):
    missing = "of the extension arl_parsers, which is not installed"
    for key, value in (("tool_parser", "glm"), ("reasoning_parser", "granite")):
        with pytest.raises(ValidationError, match=f"'{value}' is a type {missing}"):
            GatewayConfig.model_validate({key: value})
    parsers, grammars = readers_of(_chat(TEMPLATES["glm"]), GatewayConfig())
    with pytest.raises(ApiError, match=r"no installed package writes .*lark \(arl_parsers\)"):
        grammars.of(FORM, "")
    parsers([TOOL], "")
    assert "glm (arl_parsers)" in caplog.text
