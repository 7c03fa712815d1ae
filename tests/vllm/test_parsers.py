"""vLLM's own tool and reasoning parsers still read the stored texts as it is stored.

tests/gateway/test_parsers_golden.py compares ours with what is stored.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.cases import cases
from tests.kit.parser_cases import ORACLES
from tests.kit.parser_oracle import CASES, ask, harmony_vocabulary, key, stored


@pytest.fixture(scope="module")
def theirs(vllm_python: str) -> dict[str, Any]:
    """What vLLM reads in every case, asked all at once: its import takes 20 seconds."""
    return ask(vllm_python)


@pytest.mark.slow
@pytest.mark.timeout(600)
@cases("name", [name for name in ORACLES if name != "gpt_oss"])
def test_the_stored_answers_are_those_of_this_vllm(theirs, name):
    _check(theirs, name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_stored_answers_of_harmony_are_those_of_this_vllm(theirs, vllm_python):
    if harmony_vocabulary(vllm_python) is None:
        pytest.skip("no vocabulary of gpt-oss here: LiteLLM ships it, or name one by ARL_TIKTOKEN")
    _check(theirs, "gpt_oss")


def _check(theirs: dict[str, Any], name: str) -> None:
    known = stored()
    keys = [key(case) for case in CASES if case.name == name]
    assert {each: theirs[each] for each in keys} == {each: known[each] for each in keys}
