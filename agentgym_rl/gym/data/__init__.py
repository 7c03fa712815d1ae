"""Tasks from the rows of files and of Hugging Face data sets, for environments of any kind.

    rows.py       the choice of rows: a path or a data set, the held-out part, the digest of all
    readers.py    rows of JSON and parquet files, and of a data set on the Hugging Face hub
    fields.py     the checked fields of a row, or the reason why it is refused
    index.py      the index of all tasks and their positions, and `row_tasks`, which makes them
    epochs.py     an endless, reshuffled repetition of a source, and resumable iteration

An environment turns a row into a `RowTask`; this package does the rest. No part of a row is ever
executed.
"""

from agentgym_rl.core import derived_number

from .epochs import Epochs, TaskLoader, without_end
from .fields import (
    Row,
    RowRefused,
    check_text,
    json_field,
    optional_text,
    parse_json,
    shorten,
    text_field,
)
from .index import ChooseMaker, MakeTasks, RowIndex, RowTask, build_index, weight_of
from .readers import Found, Reader, RowPosition, hub_splits
from .row_tasks import RowTasks, row_tasks
from .rows import CONTENT, Rows, content_of, files_of, open_file

__all__ = [
    "CONTENT",
    "ChooseMaker",
    "Epochs",
    "Found",
    "MakeTasks",
    "Reader",
    "Row",
    "RowIndex",
    "RowPosition",
    "RowRefused",
    "RowTask",
    "RowTasks",
    "Rows",
    "TaskLoader",
    "build_index",
    "check_text",
    "content_of",
    "derived_number",
    "files_of",
    "hub_splits",
    "json_field",
    "open_file",
    "optional_text",
    "parse_json",
    "row_tasks",
    "shorten",
    "text_field",
    "weight_of",
    "without_end",
]
