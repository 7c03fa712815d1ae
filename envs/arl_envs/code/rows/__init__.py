"""Problems from the rows of public data sets, by Hugging Face id or local file.

    source.py     tasks: the entry point, `row_tasks`; files and hub are read by gym.data
    format.py     the format of a row: deepcoder.py livecodebench.py apps.py humaneval.py
                  mbpp.py kodcode.py leetcode.py code_contests.py codeforces.py verifiable.py
                  verl.py, each from a row to a draft.py
    listed.py     tests as a list of cases, perhaps compressed
    cases.py      tests from inputs and outputs, and their checked values
    assertions.py tests from test code, statement by statement
    nodes.py      linked lists and trees
    several.py    statements that accept several answers
    assembly.py   from a draft to a problem: its tests, its text and the imports

Nothing in a row is ever executed here: test code is parsed, and pickles are not loaded.
"""

from .source import row_tasks

__all__ = ["row_tasks"]
