"""The forms in which people write rows, by which the prompt is found where no option names its
column. A package adds a form to the group `agentgym_rl.row_forms`; ours are in `arl_data`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentgym_rl.core import ConfigError, load_extensions

from .fields import Row

ROW_FORMS = "row_forms"
"""The group of entry points of objects of `RowForm`."""
_MOST_COLUMNS = 12
"""The number of columns that an error lists."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """A form of rows: the columns by which it is recognized, and its prompt."""

    prompt: str
    """The column of the prompt."""
    others: tuple[str, ...] = ()
    """The other columns that such rows have."""
    read: Callable[[Row], Any] | None = None
    """A module's function that returns the prompt of a row (text, or a list of messages), or raises
    RowRefused; None: the value of the column `prompt`."""
    reads: str = ""
    """The description of the prompt that is read, for the log; by default, its column."""
    answer: str = ""
    """The place of the reference answer in the row, for the log; "": such rows have none."""
    find_answer: Callable[[Row], Any] | None = None
    """A module's function that returns the answer, or None; by default, the column `answer`."""

    def fits(self, row: Row, *, blank: bool = False) -> bool:
        """Return whether a row has the columns of this form; if not `blank`, with values."""
        names = (self.prompt, *self.others)
        return all(name in row and (blank or row[name] not in (None, "")) for name in names)

    def prompt_of(self, row: Row) -> Any:
        """Return the prompt of a row.

        Raises:
            RowRefused: the row has none.
        """
        return row.get(self.prompt) if self.read is None else self.read(row)


class Recognized(NamedTuple):
    """The form of a row, with its name."""

    name: str
    form: RowForm

    def __str__(self) -> str:
        answer = f", answer = {self.form.answer}" if self.form.answer else ""
        return f"{self.name}: prompt = {self.form.reads or self.form.prompt}{answer}"


def form_of(row: Row, where: str, *, flag: str) -> Recognized:
    """Return the form of a row. A column `prompt` is the prompt, whatever other columns there are;
    of several forms with one prompt, the one with the most columns is taken.

    Args:
        where: The position of the row, for errors.
        flag: The beginning of the flag that names the column of the prompt, for errors.

    Raises:
        ConfigError: the row has none of the known forms, or those of several prompts.
    """
    known = load_extensions(ROW_FORMS, of=RowForm)
    found = [Recognized(name, form) for name, form in known.items() if form.fits(row)] or [
        Recognized(name, form) for name, form in known.items() if form.fits(row, blank=True)
    ]
    if "prompt" in row:
        plain = Recognized("prompt", RowForm("prompt"))
        found = [it for it in found if it.form.prompt == "prompt"] or [plain]
    prompts = list(dict.fromkeys(it.form.prompt for it in found))
    if len(prompts) > 1:
        raise ConfigError(
            f"{where}: the prompt may be {' or '.join(prompts)}: choose one, such as "
            f"{flag}{prompts[0]}. The columns are {_listed(row)}"
        )
    if not found:
        prompts = sorted({"prompt", *(form.prompt for form in known.values())})
        raise ConfigError(
            f"{where}: no column has a known name of a prompt ({', '.join(prompts)}): name one, "
            f"such as {flag}{_longest(row)}. The columns are {_listed(row)}"
        )
    if all(not it.form.others for it in found):  # the other columns may be blank in this row
        blank = (Recognized(name, it) for name, it in known.items() if it.fits(row, blank=True))
        found += [
            it
            for it in blank
            if it.form.prompt == prompts[0] and None not in map(row.get, it.form.others)
        ]
    return max(found, key=lambda it: len(it.form.others))


def _longest(row: Row) -> str:
    """Return the column with the longest text, which is likely to be the prompt."""
    texts = {str(name): len(value) for name, value in row.items() if isinstance(value, str)}
    return max(texts, key=lambda name: texts[name], default="COLUMN")


def _listed(row: Row) -> str:
    names = [str(name) for name in row]
    more = f" and {len(names) - _MOST_COLUMNS} more" if len(names) > _MOST_COLUMNS else ""
    return f"{', '.join(names[:_MOST_COLUMNS])}{more}"
