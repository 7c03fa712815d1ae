"""Whatever its fields hold, a row is made a problem or refused: it never ends the run."""

import contextlib
import json
from typing import Any

from arl_envs.code.rows.format import FORMATS
from arl_envs.code.rows.listed import unpack
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rl.gym.data import RowRefused, parse_json
from tests.kit.cases import cases

from .rows_kit import problem

WORDS = st.sampled_from(
    ["", "f", "1", "[1]", '"a"', "{", "stdin", "functional", "function_call", "assert f(1) == 2"]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), WORDS)
KEYS = st.sampled_from(
    ["input", "output", "testtype", "type", "metadata", "func_name", "fn_name", "inputs", "outputs"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner), max_leaves=12
)
FIELDS = st.sampled_from(
    ["problem", "question", "tests", "metadata", "starter_code", "input_output", "test_list",
     "question_content", "public_test_cases", "private_test_cases", "prompt", "entry_point",
     "test", "test_info", "code", "text", "test_setup_code", "time_limit", "solution",
     "description", "public_tests", "private_tests", "input_file", "official_tests", "examples",
     "input_mode", "generated_checker", "verification_info", "reward_model", "ability", "query"]
)  # fmt: skip
GOOD: dict[str, Any] = {
    "problem": "Do it.", "question": "Do it.", "question_content": "Do it.", "text": "Do it.",
    "prompt": "def f(x):\n    ''", "entry_point": "f", "test": "assert f(1) == 2",
    "test_list": ["assert f(1) == 2", "assert f(2) == 3"], "public_test_cases": [],
    "private_test_cases": '[{"input": "1", "output": "2", "testtype": "stdin"}]',
    "tests": {"inputs": ["1"], "outputs": ["2"]},
    "input_output": {"inputs": [[1]], "outputs": [2], "fn_name": "f"},
    "starter_code": "def f(x):", "query": "Do it.", "description": "Do it.",
    "public_tests": {"input": [], "output": []},
    "private_tests": {"input": ["1"], "output": ["2"]},
    "official_tests": [{"input": "1", "output": "2"}],
    "verification_info": {"test_cases": [{"type": "stdin_stdout", "input": "1", "output": "2"}]},
    "reward_model": {"ground_truth": '{"inputs": ["1"], "outputs": ["2"]}'},
}  # fmt: skip
GOOD_OF = {"verl": {"prompt": [{"role": "user", "content": "Do it."}]}}


@cases("format", FORMATS)
def test_the_good_row_is_good(format: str) -> None:
    assert problem(format, GOOD | GOOD_OF.get(format, {})).hidden


@settings(max_examples=60, deadline=None)
@given(changes=st.dictionaries(FIELDS, VALUES | VALUES.map(json.dumps), min_size=1, max_size=3))
def test_any_row_is_made_a_problem_or_refused(changes: dict[str, Any]) -> None:
    for format in FORMATS:
        with contextlib.suppress(RowRefused):
            assert problem(format, GOOD | GOOD_OF.get(format, {}) | changes).hidden, format


@settings(max_examples=300, deadline=None)
@given(text=st.text() | st.text('[]{}":,0123456789eE.-+ntf\\u', max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (parse_json, unpack):
        with contextlib.suppress(RowRefused):
            read(text, "text")
