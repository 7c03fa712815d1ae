"""The index of the tasks in rows and of the positions of the rows."""

from __future__ import annotations

import logging
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self, cast

from agentgym_rl.core import ArlError, ConfigError, Split, Task, derived_number, is_rendered
from agentgym_rl.core.chat import RENDERED
from agentgym_rl.gym import data
from agentgym_rl.gym.data import (
    Row,
    RowRefused,
    Rows,
    RowTask,
    content_of,
    weight_of,
)

from .formats import HELD_OUT, readers_of, stamps_of
from .seen import Duplicate, Overlap, Seen, digest_of

_log = logging.getLogger(__name__)

NUM_REASONS = 5
"""The number of different reasons for refused rows that are reported."""

_FEW = 10
"""The number of tasks held out by hash below which a warning is logged: too few for a mean."""
_ID_FIELDS = ("task_id", "question_id", "problem_id", "uid", "id")
WEIGHT, SPLIT = "weight", "split"
"""The names that fields of weights and splits often have; a log line reports such fields that are
not used."""
_CONTROL = re.compile(
    r"<\|(?:im_start|im_end|start_header_id|end_header_id|eot_id|begin_of_text|endoftext|system|user"
    r"|assistant|end)\|>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|^\s*<s>(?!.*</s>\s*\S)",
)
"""The control tokens of common chat templates; `<s>` only at the beginning, as HTML has it too."""
_NO_ID = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(slots=True)
class TaskIndex(data.RowIndex):
    """The index of every task of the rows: some 40 bytes each, regardless of the rows' size."""

    eval_fraction: float
    weight_field: str
    readers: list[data.Reader] = field(default_factory=list[data.Reader])
    makers: list[data.MakeTasks] = field(default_factory=list[data.MakeTasks])
    """The makers, one for each reader."""
    num_rows: int = 0
    num_refused: int = 0
    """The number of rows whose tasks were all refused."""
    num_tasks_refused: int = 0
    """The number of refused tasks in rows that have other tasks left."""
    num_unread: Counter[str] = field(default_factory=Counter[str])
    """The number of rows with each of the fields `WEIGHT` and `SPLIT`, if the field is not used."""
    num_left_out: int = 0
    """The number of rows that the maker left out."""
    num_rendered: int = 0
    """The number of tasks with control tokens of a chat template in their question."""
    rendered: str = ""
    """The first such token, and its position."""
    _reasons: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """The first different reasons for which rows and tasks were refused, each with the first
    position, the number of cases and the first one's words; all duplicates are one reason."""
    _reader: array[int] = field(default_factory=lambda: array("L"))
    _place: array[int] = field(default_factory=lambda: array("q"))
    """The positions, two numbers for each task."""
    _part: array[int] = field(default_factory=lambda: array("L"))
    """The position of each task among those of its row."""
    _digest: array[int] = field(default_factory=lambda: array("Q"))
    _words: array[int] = field(default_factory=lambda: array("Q"))
    """The digest of the words of each task's question."""
    _is_eval: bytearray = field(default_factory=bytearray)
    _data: int = 0
    """The sum of the tasks' content digests, which does not depend on their order."""

    @classmethod
    def of(cls, rows: Rows, choose: data.ChooseMaker) -> Self:
        return cast(Self, _index_of(rows, choose, stamps_of(rows)))

    def __len__(self) -> int:
        return len(self._digest)

    @property
    def num_explained(self) -> int:
        """Return the number of refused rows and tasks whose reason is in `reasons`."""
        return sum(number for _, number, _ in self._reasons.values())

    def num_of(self, kind: type[RowRefused]) -> int:
        """Return the number of refused tasks of a kind that is counted as one reason."""
        return self._reasons.get(kind.__name__, ("", 0))[1]

    @property
    def num_held(self) -> int:
        """Return the number of tasks held out for evaluations."""
        return sum(self._is_eval)

    def numbers(self, split: Split) -> list[int]:
        held = split == "eval"
        return [number for number, is_eval in enumerate(self._is_eval) if is_eval == held]

    def digest(self, number: int) -> int:
        return self._digest[number]

    def task(self, number: int) -> Task:
        reader = self.readers[self._reader[number]]
        place: data.RowPosition = (self._place[2 * number], self._place[2 * number + 1])
        row = reader.at(place)
        try:
            made = _tasks_of(self.makers[self._reader[number]], row, reader.name)
            item = made[self._part[number]]
            if digest_of(item.key or item.question) != self._digest[number]:
                raise RowRefused("another task than when the rows were counted")
            weight = weight_of(row, self.weight_field) if item.weight is None else item.weight
        except (RowRefused, IndexError) as error:
            raise ConfigError(
                f"{reader.name} has changed since, or what makes its rows tasks is no pure "
                f"function: {error}"
            ) from error
        name = _task_id(row, self._digest[number])
        split: Split = "eval" if self._is_eval[number] else "train"
        return Task(name, derived_number(name), item.data, split, weight)

    def describe(self) -> dict[str, Any]:
        return {
            "sources": [reader.name for reader in self.readers],
            "rows": self.num_rows,
            "rows_refused": self.num_refused,
            "tasks_refused": self.num_tasks_refused,
            "rows_left_out": self.num_left_out,
            "reasons": self.reasons,
            "tasks_train": len(self) - self.num_held,
            "tasks_eval": self.num_held,
            "data": f"{self._data:032x}",
        }

    def read(
        self, reader: data.Reader, split: Split | None, choose: data.ChooseMaker, seen: Seen
    ) -> None:
        """Add the tasks of every row of `reader`.

        Raises:
            ConfigError: malformed data, rows of an unknown kind, or a broken maker.
        """
        which = len(self.readers)
        self.readers.append(reader)
        for place, where, row in reader:
            self.num_rows += 1
            self._count_unread(row, split)
            if len(self.makers) == which:
                self.makers.append(choose(row, where))
            try:
                made = _tasks_of(self.makers[which], row, where)
                by_row = any(item.weight is None for item in made)
                row_weight = weight_of(row, self.weight_field) if by_row else None
            except RowRefused as error:
                self.num_refused += 1
                self._note(where, error)
                continue
            self.num_left_out += not made
            refused = 0
            for part, item in enumerate(made):
                try:
                    digest, words, held = seen.add(item, split, where, self.eval_fraction)
                    weight = row_weight if item.weight is None else item.weight
                    content = _content(_task_id(row, digest), dict(item.data), weight, held)
                except RowRefused as error:
                    refused += 1
                    self._note(where, error)
                else:
                    self._add(which, place, part, digest, held, content)
                    self._words.append(words)
                    self._count_rendered(item, where)
            if refused and refused == len(made):
                self.num_refused += 1
            else:
                self.num_tasks_refused += refused

    def _add(
        self,
        which: int,
        place: data.RowPosition,
        part: int,
        digest: int,
        split: Split,
        content: str,
    ) -> None:
        self._reader.append(which)
        self._place.extend(place)
        self._part.append(part)
        self._digest.append(digest)
        self._is_eval.append(split == "eval")
        self._data = (self._data + int(content, 16)) % 2**128

    @property
    def reasons(self) -> list[str]:
        """Return the first different reasons for which rows and tasks were refused, with their
        positions."""
        return [
            f"{where}: {reason}" + (f" (as in {number - 1} more)" if number > 1 else "")
            for where, number, reason in self._reasons.values()
        ]

    def _count_unread(self, row: Row, split: Split | None) -> None:
        if row.get(WEIGHT) not in (None, 1) and self.weight_field != WEIGHT:
            self.num_unread[WEIGHT] += 1
        if split != "eval" and str(row.get(SPLIT)).lower() in HELD_OUT:
            self.num_unread[SPLIT] += 1

    def _count_rendered(self, item: RowTask, where: str) -> None:
        if match := _CONTROL.search(item.said or item.question):
            self.num_rendered += 1
            self.rendered = self.rendered or f"{match[0].strip()} in {where}"

    def hold_out(self, words: Set[int]) -> int:
        """Hold out the training tasks whose questions have these words; return their number."""
        moved = [n for n, one in enumerate(self._words) if one in words and not self._is_eval[n]]
        for number in moved:
            task = self.task(number)
            for split, sign in (("train", -1), ("eval", 1)):
                content = content_of(task.id, dict(task.data), task.weight, split)
                self._data = (self._data + sign * int(content, 16)) % 2**128
            self._is_eval[number] = True
        return len(moved)

    def _note(self, where: str, error: RowRefused) -> None:
        kind = type(error)
        reason = kind.__name__ if kind in (Duplicate, Overlap) else str(error)
        if reason in self._reasons:
            self._reasons[reason][1] += 1
        elif len(self._reasons) < NUM_REASONS or reason != str(error):
            self._reasons[reason] = [where, 1, str(error)]


def build_index(
    readers: Iterable[tuple[data.Reader, Split | None]],
    choose: data.ChooseMaker,
    *,
    eval_fraction: float = 0.1,
    weight_field: str = "",
    join_forms: bool = True,
) -> TaskIndex:
    """Read every row once; divide the rows of a reader without a split by their questions.

    The first of the tasks with equal keys is kept, and no question is in two splits: pass readers
    of the eval split first. Refused rows are counted and logged, with the first reasons.

    Raises:
        ConfigError: malformed data, rows of an unknown kind, or no row from which a task can be
            made.
    """
    index, seen = TaskIndex(eval_fraction, weight_field), Seen(join_forms=join_forms)
    splits = set[Split | None]()
    for reader, split in readers:
        index.read(reader, split, choose, seen)
        splits.add(split)
    names = ", ".join(reader.name for reader in index.readers)
    _log_refused(index, names)
    if seen.moved and (num_moved := index.hold_out(seen.moved)):
        _log.info("%s: %d tasks are held out as other forms of others' questions", names, num_moved)
    _log_splits(index, names, by_hash=None in splits)
    _log_unread(index, names)
    _log_suspect(index, names)
    return index


@lru_cache(maxsize=4)  # train and eval share one, and `arl train` reads each more than once
def _index_of(rows: Rows, choose: data.ChooseMaker, stamps: tuple[object, ...]) -> TaskIndex:
    return build_index(
        readers_of(rows),
        choose,
        eval_fraction=rows.eval_fraction,
        weight_field=rows.weight_field,
        join_forms=rows.join_forms,
    )


def _tasks_of(make: data.MakeTasks, row: Row, where: str) -> Sequence[RowTask]:
    try:
        made = make(row)
    except (RowRefused, ArlError):
        raise
    except Exception as error:  # `make` may be a user's code
        raise ConfigError(f"{where}: {make} raised {type(error).__name__}: {error}") from error
    if made is None:
        return ()
    tasks = (made,) if isinstance(made, RowTask) else made
    if any(is_rendered(task.question) for task in tasks):
        raise RowRefused(RENDERED)
    return tasks


def _task_id(row: Row, digest: int) -> str:
    """Return the row's own id, reduced to plain characters, plus the digest: ids repeat, at least
    between splits."""
    text = f"{digest:016x}"
    for name in _ID_FIELDS:
        value = row.get(name)
        if isinstance(value, str | int) and (said := _written(value).strip()):
            return f"{_NO_ID.sub('_', said)[:64]}-{text[:8]}"
    return text


def _content(*parts: Any) -> str:
    """Return the digest of a task's content.

    Raises:
        RowRefused: the content has a whole number that is too long for JSON.
    """
    try:
        return content_of(*parts)
    except ValueError as error:
        raise RowRefused(
            f"it cannot be written as JSON ({error}): write the number as text"
        ) from error


def _written(value: str | int) -> str:
    try:
        return str(value)
    except ValueError:  # a number of more than 4300 digits
        return hex(value) if isinstance(value, int) else ""


def _log_refused(index: TaskIndex, names: str) -> None:
    if not index.num_rows:
        raise ConfigError(f"{names}: no rows: the source is empty; each row is a task")
    reasons = "; ".join(index.reasons)
    if not len(index):
        left = f"{index.num_left_out} are left out" if index.num_left_out else ""
        refused = f"{index.num_refused} are refused: {reasons}" if index.num_refused else ""
        if index.num_refused == index.num_rows:
            raise ConfigError(f"{names}: all {index.num_rows} rows are refused: {reasons}")
        said = ", ".join(filter(None, [left, refused]))
        raise ConfigError(f"{names}: no row of {index.num_rows} makes a task: {said}")
    if index.num_left_out:
        _log.info("%s: %d of %d rows are left out", names, index.num_left_out, index.num_rows)
    if num_refused := index.num_refused + index.num_tasks_refused:
        more = "; ..." if num_refused > index.num_explained else ""
        rows = f"{index.num_refused} of {index.num_rows} rows" if index.num_refused else ""
        tasks = f"{index.num_tasks_refused} tasks beside others" if index.num_tasks_refused else ""
        _log.warning(
            "%s: %s are refused: %s%s",
            names, " and ".join(filter(None, [rows, tasks])), reasons, more,
        )  # fmt: skip


def _log_splits(index: TaskIndex, names: str, *, by_hash: bool) -> None:
    """Log how many tasks are held out, and how they were chosen."""
    held = index.num_held
    how = "as their file or split says"
    if by_hash:
        how = (
            f"a share of {index.eval_fraction:g}, by the hash of the question (eval_fraction; to "
            "choose them, give eval_path or eval_data)"
        )
    few = by_hash and 0 < held < _FEW
    _log.log(
        logging.WARNING if few else logging.INFO,
        "%s: %d tasks to train on, %d held out for evaluations, %s",
        names, len(index) - held, held, how,
    )  # fmt: skip


def _log_unread(index: TaskIndex, names: str) -> None:
    """Log the unused fields of rows whose names are those of weights or splits."""
    if count := index.num_unread[WEIGHT]:
        _log.warning(
            "%s: %d rows have a field `weight`, and it is no weight of theirs in the loss: "
            "env.options.rows.weight_field=weight makes it one",
            names, count,
        )  # fmt: skip
    if count := index.num_unread[SPLIT]:
        _log.warning(
            "%s: %d rows have a field `split` for held-out rows, and it does not hold them out: "
            "give them in a file of their own (eval_path or eval_data), or leave them out",
            names, count,
        )  # fmt: skip


def _log_suspect(index: TaskIndex, names: str) -> None:
    """Log what is often a mistake: held-out tasks that are also training rows, and control tokens
    in prompts."""
    if count := index.num_of(Overlap):
        _log.warning(
            "%s: %d training rows have the question of a held-out one, and are left out of "
            "training; %d tasks are left to train on",
            names, count, len(index) - index.num_held,
        )  # fmt: skip
    if index.num_rendered:
        _log.warning(
            "%s: %d prompts have control tokens of a chat template, such as %s: the model's own "
            "template writes them, and these become text of the user's message. Give the messages "
            "(a list of objects with role and content), or the user's text alone",
            names, index.num_rendered, index.rendered,
        )  # fmt: skip
