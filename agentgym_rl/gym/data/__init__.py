"""Tasks from rows: of files, of Hugging Face data sets; for environments of any kind.

    rows.py       which rows: a path, or a data set, and what of it is held out
    reader.py     what reads rows: of files.py, json_file.py and parquet_file.py; of the hub, hub.py
    stamp.py      whether a file has changed; recent.py, the parts of files that were decoded last
    fields.py     the fields of a row, checked; refusal.py, why a row is no task; extra.py, imports
    index.py      which tasks there are, and where; tasks.py, the tasks themselves: `row_tasks`
    epochs.py     a finite source for ever, shuffled anew each time; loader.py, resumable iteration
    content.py    whether two sources give the same tasks in the same order

An environment says what a row asks (a `RowTask`); everything else is here. Nothing of a row is
ever executed.
"""

from agentgym_rl.core.task import derived_number

from .epochs import Epochs, without_end
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
from .hub import hub_splits
from .index import (
    ChooseMaker,
    MakeTasks,
    RowIndex,
    RowTask,
    build_index,
    weight_of,
)
from .loader import TaskLoader
from .reader import Found, Place, Reader
from .rows import CONTENT, Rows, content_of, files_of, open_file
from .tasks import RowTasks, row_tasks

__all__ = [
    "CONTENT",
    "ChooseMaker",
    "Epochs",
    "Found",
    "MakeTasks",
    "Place",
    "Reader",
    "Row",
    "RowIndex",
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
