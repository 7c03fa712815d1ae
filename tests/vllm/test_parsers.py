"""vLLM's own tool and reasoning parsers read the same texts as ours; the differences are listed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from agentgym_rl.gateway.parsers import Parser, Reasoning, ToolCall
from agentgym_rl.gateway.parsers.families import FAMILIES
from agentgym_rl.gateway.parsers.think import ThinkParser
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases

sys.path.insert(0, str(Path(__file__).parent))

from parser_cases import NAMED, REASONS, TOOL, Case, well_formed

RANDOM = well_formed(num=300, seed=0)


def ours(case: Case) -> list[Any]:
    """[reasoning, content, [[name, arguments], …]], without whitespace at the ends."""
    parser: Parser = FAMILIES[case.family]([TOOL])
    if case.thinks:
        parser = ThinkParser(parser, opened=case.thinks == "opened")
    events = parser.feed(case.text) + parser.finish()
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    content = "".join(event for event in events if isinstance(event, str))
    calls = [event for event in events if isinstance(event, ToolCall)]
    return [
        reasoning.strip(),
        content.strip(),
        [[call.name, "malformed" if call.malformed else json.loads(call.arguments)]
         for call in calls],
    ]  # fmt: skip


def _same_form(theirs: Any) -> list[Any]:
    reasoning, content, calls = theirs
    calls = [[name, json.loads(arguments)] for name, arguments in calls]
    return [(reasoning or "").strip(), (content or "").strip(), calls]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with the tokens that vLLM's parsers look for."""
    made = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    made.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    made.add_special_tokens(["<|python_tag|>"])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture(scope="module")
def theirs(vllm_python: str, tokenizer: Path) -> dict[Case, list[Any]]:
    """What vLLM reads in every case, asked all at once: its import takes 20 seconds."""
    every: Sequence[Case] = [*NAMED, *RANDOM]
    asked = [
        {
            "tool_parser": case.family,
            "reasoning_parser": "qwen3" if case.thinks else None,
            "thinking": case.thinks != "closed",
            "tools": [TOOL],
            "text": case.text,
        }
        for case in every
    ]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [vllm_python, str(Path(__file__).parent / "parsers_child.py"), str(tokenizer)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=200,
        env=environ,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    return {case: _same_form(answer) for case, answer in zip(every, answers, strict=True)}


@pytest.mark.slow
@cases("number", range(len(NAMED)))
def test_a_text_is_read_as_vllm_does_or_for_a_reason_not(theirs, number):
    case = NAMED[number]
    if case.differs:
        assert case.differs in REASONS
        assert ours(case) != theirs[case], "no difference: take it off the list"
    else:
        assert ours(case) == theirs[case]


@pytest.mark.slow
def test_well_formed_replies_are_read_alike(theirs):
    differ = [(case, ours(case), theirs[case]) for case in RANDOM if ours(case) != theirs[case]]
    assert differ == []


def test_every_reason_has_its_cases():
    assert {case.differs for case in NAMED} == {*REASONS, ""}
