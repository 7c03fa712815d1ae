"""Every family's texts are read as vLLM reads them, or not, for a listed reason.

The answers of vLLM are stored (tests/kit/parser_oracle.py); tests/vllm asks it again.
"""

import pytest

from tests.kit.cases import cases
from tests.kit.parser_cases import ORACLES, REASONS
from tests.kit.parser_oracle import CASES, PAGE, key, ours, page, stored


@pytest.fixture(scope="module")
def answers():
    return stored()


@cases("number", range(len(CASES)))
def test_a_text_is_read_as_vllm_does_or_for_a_reason_not(answers, number):
    case = CASES[number]
    theirs = answers[key(case)]["whole"]
    if case.differs:
        assert case.differs in REASONS
        assert ours(case) != theirs, "no difference: take it off the list"
    else:
        assert ours(case) == theirs


@cases("name", ORACLES)
@pytest.mark.slow
def test_a_text_may_be_cut_anywhere(name):
    for case in CASES:
        if case.name == name:
            whole = ours(case)
            assert all(ours(case, cut) == whole for cut in range(1, len(case.text)))
            assert ours(case, *range(1, len(case.text))) == whole


def test_the_answers_are_those_to_these_texts(answers):
    assert list(answers) == [key(case) for case in CASES]


def test_every_reason_has_its_texts():
    assert {case.differs for case in CASES} == {*REASONS, ""}


def test_the_table_of_the_page_is_that_of_the_answers(answers):
    text = PAGE.read_text()
    assert page(text, answers) == text, "run: python -m tests.kit.parser_oracle"
