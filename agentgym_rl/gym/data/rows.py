"""The choice of the rows that become tasks: those of files, which are found by name or pattern and
opened according to their suffix, or of a data set; and a digest that is equal for two sources with
the same tasks in the same order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core import SAVE_FIRST, ConfigError, saved_as

CONTENT = "content"
"""The key of the digest in the result of `TaskSource.describe`."""


def content_of(*parts: Any) -> str:
    """Return the digest of `parts`, in their order; the order of JSON keys does not matter."""
    try:
        text = json.dumps(parts, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):  # no JSON: keys of several kinds, a cycle
        text = repr(parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of files (`path`) or of a Hugging Face data set (`dataset`).

    Raises:
        ConfigError: the options contradict each other.
    """

    path: str | None = None
    """A file of rows (.jsonl, .json, .csv, .tsv, .parquet), a pattern of several, or the folder of
    a data set that `save_to_disk` wrote."""
    eval_path: str | None = None
    """The file or pattern for the eval split; `path` is then only for training. Without a `path`
    there are no training tasks."""
    dataset: str | None = None
    """An id on the hub, or a folder; needs the extra `hf`."""
    config: str | None = None
    """The config of the data set, if it has several."""
    revision: str | None = None
    """The commit, tag or branch of the data set. Without one the newest is taken: a warning names
    its commit, and `RowTasks.describe()` contains it."""
    train_split: str | None = None
    eval_split: str | None = None
    """The splits of the data set, if it has several (also of a folder). Without them, `train` and
    the only other one whose name is that of held-out rows, such as `test`."""
    eval_fraction: float = 0.1
    """The share of questions, chosen by hash, that is held out if there is no second split."""
    weight_field: str = ""
    """The field with a task's weight, which multiplies the loss of its episodes; "": none."""
    join_forms: bool = True
    """Whether a question is held out if one of its forms is; forms differ in spacing, case, Unicode
    or punctuation at the ends. False, as in runs of earlier versions: each form has its own
    split."""

    def __post_init__(self) -> None:
        for name in ("path", "dataset", "eval_path", "weight_field"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                save = saved_as(value)
                got = f"a {type(value).__name__}" if save else f"{value!r:.200}"
                hint = f", the path of a file; {SAVE_FIRST.format(save)}" if save else ""
                raise ConfigError(f"{name}: got {got}, expected text{hint}")
        given = [n for n in ("path", "dataset") if getattr(self, n) is not None]
        if len(given) == 2 or not (given or self.eval_path):
            raise ConfigError(
                "rows come from `path` or `dataset`: give one of them (or `eval_path` alone, to "
                f"evaluate only); got {', '.join(given) or 'neither'}"
            )
        if self.eval_path and self.dataset:
            raise ConfigError("eval_path: only with path; with a data set, name its eval_split")
        if self.path and (self.config or self.revision):
            raise ConfigError("config, revision: only with a data set")
        joins: Any = self.join_forms
        if not isinstance(joins, bool):
            raise ConfigError(f"join_forms: got {joins!r}, allowed: true, false")
        share: Any = self.eval_fraction
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not 0 <= share < 1:
            raise ConfigError(
                f"eval_fraction: got {share!r}, allowed: numbers from 0 up to (not) 1"
            )

    @classmethod
    def of_options(
        cls, rows: Mapping[str, Any], *, data: str | None = None, eval_data: str | None = None
    ) -> Rows:
        """Return the rows of an environment's options: `rows`, a table of the fields above, or the
        short forms `data` (for `path`) and `eval_data` (for `eval_path`).

        Raises:
            ConfigError: a field is unknown, or given twice.
        """
        short = {"path": data, "eval_path": eval_data}
        given: dict[str, Any] = {name: v for name, v in short.items() if v is not None}
        if both := given.keys() & rows.keys():
            raise ConfigError(f"data, eval_data: rows has {', '.join(sorted(both))} already")
        if unknown := rows.keys() - set(cls.__slots__):
            raise ConfigError(
                f"rows: unknown {', '.join(sorted(unknown))}; allowed: {', '.join(cls.__slots__)}"
            )
        return cls(**rows, **given)
