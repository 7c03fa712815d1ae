"""Which program is in a message."""

import pytest
from arl_envs.code.extract import MAX_BLOCKS, MAX_FENCES, MAX_PROGRAM_CHARS, last_program
from hypothesis import given
from hypothesis import strategies as st

FOUND = [
    ("```python\nx = 1\n```", "x = 1\n"),
    ("Here:\n\n```python\nx = 1\n```\nDone.", "x = 1\n"),
    ("```\nx = 1\n```", "x = 1\n"),
    ("```py\nx = 1\n```", "x = 1\n"),
    ("```Python3 \nx = 1\n```", "x = 1\n"),
    ("``` python\nx = 1\n```", "x = 1\n"),
    ("  ```python\n  x = 1\n  ```  ", "  x = 1\n"),
    ("```python\r\nx = 1\r\ny = 2\r\n```\r\n", "x = 1\ny = 2\n"),
    ("```python\nx = 1\n```\n```python\nx = 2\n```", "x = 2\n"),
    ("```python\nx = 1\n```\n```text\nx = 2\n```", "x = 1\n"),
    ("```python\nx = 1\n```\n```python\n\n```", "x = 1\n"),
    ("```python\nx = 1\n```\n```python\nx = 2\n", "x = 1\n"),
    ("```python\nx = '```'\n```", "x = '```'\n"),
    ("```python\nx = '''\n``` y\n'''\n```", "x = '''\n``` y\n'''\n"),
    ("```text\n```python\nx = 1\n```\n```python\nx = 2\n```", "x = 2\n"),
    ("```python\nx = '\u2028\x0c'\n```", "x = '\u2028\x0c'\n"),
    ("use ```x``` or\n```python\nx = 1\n```", "x = 1\n"),
]
NOT_FOUND = [
    "",
    "x = 1",
    "```",
    "```python",
    "```python\nx = 1",
    "```python\nx = 1\n",
    "```python\n```",
    "```python\n \n```",
    "```python x = 1 ```",
    "say ```python\nx = 1\n```",
    "```java\nx = 1\n```",
    "```python title=x\nx = 1\n```",
    "````\n```python\nx = 1\n```\n````",
    "~~~python\nx = 1\n~~~",
]
PIECES = st.sampled_from(
    ["```", "```python", "\n", "\r\n", "x = 1", " ", "````", "\u2028", "\ud800"]
)  # fmt: skip


@pytest.mark.parametrize(("text", "program"), FOUND)
def test_the_last_closed_block_of_python(text: str, program: str) -> None:
    assert last_program(text) == program


@pytest.mark.parametrize("text", NOT_FOUND)
def test_no_program(text: str) -> None:
    assert last_program(text) is None


def test_a_program_may_be_long_but_not_longer() -> None:
    longest = "x" * (MAX_PROGRAM_CHARS - 1) + "\n"
    assert last_program(f"```\n{longest}```") == longest
    assert last_program(f"```\nx{longest}```") is None
    assert last_program(f"```\nx = 1\n```\n```\nx{longest}```") == "x = 1\n"


def test_a_message_of_too_many_blocks_holds_no_program() -> None:
    assert last_program("```\nx\n```\n" * MAX_BLOCKS) == "x\n"
    assert last_program("```\nx\n```\n" * (MAX_BLOCKS + 1)) is None


def test_a_message_of_too_many_fences_holds_no_program() -> None:
    opened = "```python\n" * (MAX_FENCES - 1)
    assert last_program(f"{opened}```") == opened.removeprefix("```python\n")
    assert last_program(f"{opened}```\n```") is None


@given(st.lists(PIECES, max_size=30).map("".join))
def test_it_is_as_a_reader_of_lines_has_it(text: str) -> None:
    assert last_program(text) == by_lines(text)


@given(st.text(alphabet=st.characters(), max_size=50), st.text(alphabet="a \n\t`", max_size=50))
def test_what_is_between_the_fences_is_given_back(before: str, program: str) -> None:
    program += "\n"
    if program.strip() and "```" not in before + program:
        assert last_program(f"{before}\n```python\n{program}```") == program


def by_lines(text: str) -> str | None:
    """The same, one line after the other."""
    found, tag, block = None, None, ""
    for line in text.split("\n"):
        mark = line.strip()
        if tag is None:
            if mark.startswith("```"):
                tag, block = mark[3:].strip().lower(), ""
        elif mark != "```":
            block += line + "\n"
        else:
            if tag in ("", "python", "py", "python3") and block.strip():
                found = block.replace("\r\n", "\n")
            tag = None
    return found
