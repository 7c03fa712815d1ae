"""Errors of users' code: the message first, the place in their own file, and their own frames."""

import asyncio
import json
import sys

import pytest

from agentgym_rl.core import EnvError, definition_of, explain
from tests.kit.cases import cases

THEIRS = """
import asyncio
import json


class Guess:
    def step(self, action):
        return self.score(action.content)

    def score(self, text):
        return json.loads(text)


async def ask():
    return 1.0


def forgotten():
    try:
        ask().choices
    finally:
        pass


async def awaited():
    await (1, 2)


def chained():
    try:
        {}["anwser"]
    except KeyError:
        raise RuntimeError("no answer\\nin this row")


def subscripts():
    from agentgym_rl import Task
    return Task("a", seed=1)["question"]


def column(name="qestion"):
    from agentgym_rl import Task
    task = Task("a", seed=1, data={"question": "2+2?", "answer": "4"})
    return len(task.data[name])


class Row:
    def __init__(self):
        self.row = {"data": {str(n): n for n in range(30)}}

    def read(self):
        return self.row["data"]["10a"]


def empty(found={}):
    return found[0]


def called():
    def rows():
        return {"a": 1}
    return rows()["b"]


def popped(row={"a": 1}):
    return row.pop("b")


def attribute():
    from agentgym_rl import Task
    return Task("a", seed=1).sed


def odd():
    class Odd(Exception):
        def __str__(self):
            raise ValueError
    raise Odd


def ours():
    from agentgym_rl.core import EnvError
    try:
        {}["anwser"]
    except KeyError as error:
        raise EnvError("rewards:score raised KeyError") from error
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "their_guess.py").write_text(THEIRS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.chdir(folder)
        import their_guess  # pyright: ignore[reportMissingImports]

        yield their_guess
    del sys.modules["their_guess"]


def text_of(call) -> str:
    try:
        call()
    except BaseException as error:
        return explain(error)
    raise AssertionError("nothing was raised")


def test_the_message_comes_first_then_the_line_of_the_user(theirs):
    lines = text_of(lambda: theirs.Guess().step({})).splitlines()
    place = "(their_guess.py, line 8, in step)"
    assert lines[:3] == [
        f"AttributeError: 'dict' object has no attribute 'content' {place}",
        "    return self.score(action.content)",
        'Messages are dictionaries: read a field as in action["content"]',
    ]
    assert lines[3].startswith("  called by ")


def test_frames_of_libraries_are_left_out_and_callers_follow(theirs):
    guess = theirs.Guess()
    text = text_of(lambda: guess.score("{"))
    assert text.startswith("JSONDecodeError: Expecting property name")
    assert "(their_guess.py, line 11, in score)\n    return json.loads(text)" in text
    assert json.__file__ not in text


@cases(
    "name, said",
    [
        ("forgotten", "A call of an `async def` needs `await` before it"),
        ("awaited", "leave `await` out, or write `async def`"),
        ("subscripts", 'read a field of its row as in task.data["name"]'),
        ("chained", "in this row"),
        ("chained", "caused by KeyError: 'anwser'"),
        ("ours", "rewards:score raised KeyError (their_guess.py, line"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine 'ask' was never awaited")
def test_what_to_do_and_causes(theirs, name, said):
    function = getattr(theirs, name)
    call = function if name != "awaited" else lambda: asyncio.run(function())
    assert said in text_of(call)


TWENTY = ", ".join(map(str, range(20)))


@cases(
    "name, said",
    [
        ("column", "'qestion'; task.data has question, answer; did you mean question? (their"),
        ("empty", "KeyError: 0; found has no keys (their"),
        ("called", "KeyError: 'b' (their"),  # it is not called a second time
        ("popped", "KeyError: 'b' (their"),
        ("attribute", "object has no attribute 'sed'; did you mean seed? (their"),
    ],
)
def test_a_missing_key_or_attribute_names_what_is_there(theirs, name, said):
    assert said in text_of(getattr(theirs, name))


def test_many_keys_are_cut_and_the_near_one_is_named(theirs):
    said = f"'10a'; self.row['data'] has {TWENTY}, …; did you mean 10? (their"
    assert said in text_of(theirs.Row().read)


def test_an_error_that_cannot_be_shown_has_its_type(theirs):
    assert text_of(theirs.odd) == "Odd"


def test_our_own_errors_are_complete_without_a_place():
    assert explain(EnvError("what, got, allowed")) == "what, got, allowed"


def test_an_error_in_a_library_alone_keeps_its_traceback():
    text = explain(_library_error())
    assert text.startswith("JSONDecodeError: Expecting value")
    assert "Traceback (most recent call last)" in text


def _library_error() -> BaseException:
    try:
        json.loads("x")
    except ValueError as error:
        traceback = error.__traceback__
        return error.with_traceback(traceback.tb_next if traceback else None)
    raise AssertionError


def test_a_syntax_error_has_its_own_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SyntaxError) as caught:
        compile("def score(completion, row)\n    return 1\n", f"{tmp_path}/rewards.py", "exec")
    text = explain(caught.value)
    assert "rewards.py, line 1" in text.splitlines()[0]
    assert text.splitlines()[1] == "    def score(completion, row)"


def test_the_place_of_a_definition(theirs):
    assert definition_of(theirs.Guess.step) == "their_guess.py, line 7, in Guess.step"
    assert definition_of(theirs.Guess) == "their_guess.py, line 6, in Guess"
    assert definition_of(len) == ""
