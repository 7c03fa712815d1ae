"""What counts as saying a fact."""

from arl_envs.tools.answers import answer, is_question, judge, read

from tests.kit.cases import cases


@cases(
    "text, facts",
    [
        ("Answer: done", []),
        ("  answer:   Done. \n", []),
        ("It is cancelled.\n\nAnswer: done", []),
        ("Answer: 349", ["349"]),
        ("Answer: 349, refused 417", ["349", "refused 417"]),
        ("Answer: REFUSED  417.", ["refused 417"]),
    ],
)
def test_said(text, facts):
    assert judge(text, facts) == "ok"


@cases(
    "text, verdict",
    [
        ("Answer: 349, 350", "wrong"),
        ("Answer: 350 or 349", "wrong"),
        ("Answer: 349 350", "wrong"),
        ("Answer: 0349", "wrong"),
        ("Answer: 349.0", "wrong"),
        ("Answer: $349", "wrong"),
        ("Answer: done", "wrong"),
        ("Answer: 349, done", "wrong"),
        ("Answer: 349,", "wrong"),
        ("Answer: refused 349", "wrong"),
        ("Answer:", "wrong"),
        ("349", "unparseable"),
        ("The answer: 349", "unparseable"),
        ("Answer: 350\nAnswer: 349", "unparseable"),
        ("Answer: 349\nThank you", "unparseable"),
        ("Answer: 349" + " " * 80 + ".", "unparseable"),
        ("x" * 20_000 + "\nAnswer: 349", "unparseable"),
        ("", "unparseable"),
        ("\0\ud800", "unparseable"),
    ],
)
def test_not_said(text, verdict):
    assert judge(text, ["349"]) == verdict


def test_the_order_of_facts_counts():
    assert judge("Answer: 2, 1", ["1", "2"]) == "wrong"
    assert read(answer(["1", "2"])) == ["1", "2"]


def test_questions():
    assert is_question("Which Ann do you mean? ")
    assert not is_question("Which? I wonder.")
    assert not is_question("Answer: which?")
    assert not is_question("")
