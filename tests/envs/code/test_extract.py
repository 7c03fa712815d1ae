"""Which program is in a message."""

import pytest
from arl_envs.code.extract import MAX_BLOCKS, MAX_FENCES, MAX_PROGRAM_CHARS, last_program
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.cases import cases

FOUND = [
    ("```python\nx = 1\n```", "x = 1\n"),
    ("Here:\n\n```python\nx = 1\n```\nDone.", "x = 1\n"),
    ("```\nx = 1\n```", "x = 1\n"),
    ("```py\nx = 1\n```", "x = 1\n"),
    ("```Python3 \nx = 1\n```", "x = 1\n"),
    ("``` python\nx = 1\n```", "x = 1\n"),
    ("  ```python\n  x = 1\n  ```  ", "x = 1\n"),
    ("```python title=x\nx = 1\n```", "x = 1\n"),
    ("```{.python .numberLines}\nx = 1\n```", "x = 1\n"),
    ("```python:main.py\nx = 1\n```", "x = 1\n"),
    ("```python3.12\nx = 1\n```", "x = 1\n"),
    ("~~~python\nx = 1\n~~~", "x = 1\n"),
    ("~~~ python `a`\nx = 1\n```\n~~~~\n", "x = 1\n```\n"),
    ("````python\nx = '''\n```\n'''\n````\n", "x = '''\n```\n'''\n"),
    ("````python\nx = 1\n``````", "x = 1\n"),
    ("```python\nx = 1\n    ```\ny = 2\n```", "x = 1\n    ```\ny = 2\n"),
    ("   ```python\n  x = 1\n  if x:\n      y = 2\n```", "x = 1\nif x:\n    y = 2\n"),
    ("   ```python\ndef f():\n    return 1\n   ```", "def f():\n    return 1\n"),
    ("   ```python\n   x = '''\na\n    b'''\n   ```", "x = '''\na\n b'''\n"),
    ("1. So:\n\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
    ("- a\n  - b\n\n    ~~~py\n    x = 1\n    ~~~\n", "x = 1\n"),
    ("10) ```python\n    x = 1\n    ```\nDone.", "x = 1\n"),
    ("* a\n\n\t```python\n\tif x:\n\t\ty\n\t```", "if x:\n    y\n"),
    ("> So:\n> ```python\n> if x:\n>     y\n> ```", "if x:\n    y\n"),
    ("> ```python\n> x = 1\n\nSo it is.", "x = 1\n"),
    ("      ```python\n      x = 1\n      ```", "x = 1\n"),
    ("```python\nx = 1", "x = 1"),
    ("```python\nx = 1\n", "x = 1\n"),
    ("```python\nx = 1\n```\nIt says:\n```\n6\n```", "x = 1\n"),
    ("```\nx = 1\n```\n```python\nx = 2\n```\n```\nx = 3\n```", "x = 2\n"),
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
    "```python\n```",
    "```python\n \n```",
    "```python x = 1 ```",
    "say ```python\nx = 1\n```",
    "```java\nx = 1\n```",
    "```pycon\n>>> x = 1\n```",
    "```python-repl\n>>> x = 1\n```",
    "```pytb\nKeyError\n```",
    "``\nx = 1\n``",
    "~~\nx = 1\n~~",
    "````\n```python\nx = 1\n```\n````",
]
PIECES = st.sampled_from(
    ["```\n", "```python\n", "\n", "\r\n", "x = 1", "  x", "````\n", "~~~\n", "~~~py\n", "\u2028"]
)  # fmt: skip


@cases("text, program", FOUND)
def test_the_program_of_a_message(text: str, program: str) -> None:
    assert last_program(text) == program


@cases("text", NOT_FOUND)
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


F, USE = "def f(x): return x\n", "print(f(1))\n"
READS, ELSE = "print(int(input()))\n", "print(3)\n"
FITTING = [
    ("f", f"```python\n{F}```\n```python\n{USE}```", F),
    ("f", f"```\n{F}```\nOutput:\n```\n6\n```", F),
    ("f", f"```\n{F}```\nRun it:\n```python\n{USE}```", F),
    ("f", f"```python\n# a draft\n{F}```\n```python\n{F}```\n```\n1\n```", F),
    ("f", f"```python\n{USE}```\n```python\nf = abs\n```\n```python\n{USE}```", "f = abs\n"),
    ("f", f"```python\nfrom m import f\n```\n```python\n{USE}```", "from m import f\n"),
    ("f", f"```python\nclass Solution:\n    {F}```\n```\nf == 2\n```", f"class Solution:\n    {F}"),
    ("f", f"```python\n{USE}```\n```python\ng = f == 1\n```", "g = f == 1\n"),
    ("f", f"```python\n{F}```\nor, not done:\n```python\n# better\n{F}", F),
    ("f", f"```\n{F}```\n```java\nint f;\n```\n```console\n$ python f.py\n```", F),
    ("", f"```\n{READS}```\nOutput:\n```\n6\n```", READS),
    ("", f"```python\n{READS}```\nTry it:\n```python\n{ELSE}```", READS),
    ("", "```\nfor x in open(0): print(x)\n```\n```\n6\n```", "for x in open(0): print(x)\n"),
    ("", f"```python\n{ELSE}```\n```\n3\n```", ELSE),
]


def test_the_block_that_does_what_is_asked_is_the_program() -> None:
    wrong = [
        (entry, text) for entry, text, wanted in FITTING if last_program(text, entry) != wanted
    ]
    assert not wrong


@given(st.lists(PIECES, max_size=30).map("".join))
def test_fences_are_those_of_commonmark(text: str) -> None:
    """The program is the content of a block, as another reader of Markdown has it."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark")
    blocks = [t for t in markdown.parse(text) if t.type == "fence"]
    found = {t.content.replace("\ufffd", "\ud800") for t in blocks}
    program = last_program(text)
    assert program is None or program in found or f"{program}\n" in found
    marked = any(t.info.strip() in ("python", "py") and t.content.strip() for t in blocks)
    assert program is not None or not marked


@given(st.text(alphabet=st.characters(), max_size=50), st.text(alphabet="a \n\t`", max_size=50))
def test_what_is_between_the_fences_is_given_back(before: str, program: str) -> None:
    program += "\n"
    if program.strip() and "```" not in before + program:
        assert last_program(f"{before}\n```python\n{program}```") == program
