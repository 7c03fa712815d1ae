"""The readers of data sets that the package `datasets` loads: by an id on the Hugging Face hub, or
from a folder."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError, hint
from agentgym_rl.gym import data
from agentgym_rl.gym.data import Row

from .stamp import require

_log = logging.getLogger(__name__)

_COMMIT = re.compile(r"@([0-9a-f]{40})/")


class HubSplit(data.Reader):
    """The reader of one split of a data set; the rows stay on disk, in the cache of `datasets`."""

    def __init__(self, rows: Any, name: str) -> None:
        self.name = name
        self._rows = rows

    def __iter__(self) -> Iterator[data.Found]:
        for number in range(len(self._rows)):
            yield data.Found((number, 0), f"{self.name}, row {number + 1}", self._rows[number])

    def at(self, place: data.RowPosition) -> Row:
        return self._rows[place[0]]


def hub_splits(
    dataset: str, *, config: str | None = None, revision: str | None = None
) -> Mapping[str, HubSplit]:
    """Load the data set `dataset` (an id, or a folder) and return its splits by name.

    The data set is downloaded unless it is in the cache. Without a `revision` the newest one is
    taken; a warning names its commit, and so do the names of the splits: `ID@COMMIT:SPLIT`. Data
    sets with code of their own are refused by `datasets` itself, from version 4 on.

    Raises:
        ConfigError: `datasets` is absent, or cannot load it.
    """
    datasets = require("datasets", f"to load the data set {dataset}")
    try:
        found = datasets.load_dataset(dataset, name=config, revision=revision)
    except Exception as error:  # any error of the hub, the network or pyarrow
        raise ConfigError(_advice(dataset, config, revision, error)) from error
    commits = {name: commit_of(rows.info.download_checksums) for name, rows in found.items()}
    if revision is None and not Path(dataset).is_dir():
        _warn(dataset, next(iter(commits.values()), None))
    return {
        str(name): HubSplit(rows, f"{dataset}{_at(commits[name] or revision)}:{name}")
        for name, rows in found.items()
    }


def commit_of(files: Iterable[str] | None) -> str | None:
    """Return the commit in the URLs of a data set's files; None if there is none."""
    found = {match[1] for file in files or () if (match := _COMMIT.search(file))}
    return found.pop() if len(found) == 1 else None


def _at(revision: str | None) -> str:
    return f"@{revision}" if revision else ""


def _warn(dataset: str, commit: str | None) -> None:
    now = f"this is {commit}: set revision={commit} to have the same again" if commit else ""
    _log.warning(
        "data set %s: no revision is pinned, so its rows may change%s",
        dataset, f"; {now}" if now else "",
    )  # fmt: skip


def _advice(dataset: str, config: str | None, revision: str | None, error: Exception) -> str:
    """Return why a data set cannot be loaded: the hub's reason and its remedy, or the error of
    `datasets` itself, such as that of an unknown `config`."""
    which = f"data set {dataset} (config {config or 'default'}, revision {revision or 'latest'})"
    if (of_hub := _error_of_hub(error)) is not None and not Path(dataset).is_dir():
        given = {"error": of_hub, "revision": revision, "kind": "data set"}
        if said := hint("download", dataset, given):
            return f"{which} cannot be loaded: {said}"
    reason = str(error).strip().splitlines()[:1] or ["no message"]
    said = f"{which} cannot be loaded: {type(error).__name__}: {reason[0]}"
    if type(error).__name__ == "DatasetNotFoundError":  # `datasets` drops the hub's own error
        from huggingface_hub import constants

        said += (
            f" Check the id at {constants.ENDPOINT}/datasets/{dataset}; if it is gated or private, "
            "accept its terms there, and run `hf auth login`, or set HF_TOKEN"
        )
    return said


def _error_of_hub(error: BaseException | None) -> BaseException | None:
    """Return the error of the hub's client, or of the network, that has caused an error."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    while error is not None:
        if isinstance(error, HfHubHTTPError | LocalEntryNotFoundError | ConnectionError):
            return error
        error = error.__cause__ or error.__context__
    return None
