"""Problems from the rows of public data sets, by Hugging Face id or local file.

    source.py     tasks: the entry, `row_tasks`; files and hub are read by agentgym_rl.gym.data
    format.py     which format a row is in: deepcoder.py livecodebench.py apps.py humaneval.py
                  mbpp.py kodcode.py, each from a row to a draft.py
    listed.py     tests as a list of cases             packed.py    the ones that are compressed
    cases.py      tests from inputs and outputs        values.py    values, checked
    assertions.py tests from test code, statement by statement; assertion.py, one of them
    assembly.py   a draft made a problem; statement.py, what is asked; prelude.py, the imports

Nothing of a row is ever executed here: test code is parsed, and pickles are not loaded.
"""

from .source import row_tasks

__all__ = ["row_tasks"]
