"""Tasks from the rows of files and of Hugging Face data sets, for environments of any kind.

    contract.py   what reads rows: files' formats, readers, and the index of all tasks
    rows.py       the choice of rows: a path or a data set, the held-out part; the digest of all
    forms.py      the forms in which rows are written, by which their prompt is found
    fields.py     the checked fields of a row, or the reason why it is refused
    row_tasks.py  the task source that makes the tasks of rows on demand
    epochs.py     an endless, reshuffled repetition of a source, and resumable iteration

An environment turns a row into a `RowTask`; an installed package (ours is `arl_data`) reads the
rows. No part of a row is ever executed.
"""

from agentgym_rl.core import derived_number

from .contract import (
    ChooseMaker,
    DataFormat,
    Found,
    MakeTasks,
    Reader,
    RowIndex,
    RowPosition,
    RowTask,
)
from .epochs import Epochs, TaskLoader, without_end
from .fields import (
    Row,
    RowRefused,
    check_text,
    json_field,
    optional_text,
    parse_json,
    read_json,
    shorten,
    text_field,
    weight_of,
    whole_number,
)
from .forms import Recognized, RowForm, form_of
from .row_tasks import RowTasks, row_tasks
from .rows import CONTENT, Rows, content_of

__all__ = [
    "CONTENT",
    "ChooseMaker",
    "DataFormat",
    "Epochs",
    "Found",
    "MakeTasks",
    "Reader",
    "Recognized",
    "Row",
    "RowForm",
    "RowIndex",
    "RowPosition",
    "RowRefused",
    "RowTask",
    "RowTasks",
    "Rows",
    "TaskLoader",
    "check_text",
    "content_of",
    "derived_number",
    "form_of",
    "json_field",
    "optional_text",
    "parse_json",
    "read_json",
    "row_tasks",
    "shorten",
    "text_field",
    "weight_of",
    "whole_number",
    "without_end",
]
