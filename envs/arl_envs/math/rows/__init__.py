"""Problems from the rows of public data sets, by Hugging Face id or local file.

formats.py    from a row of each known format to a question and its answer
source.py     tasks: the entry point, `row_tasks`
"""

from .source import row_tasks

__all__ = ["row_tasks"]
