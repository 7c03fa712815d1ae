"""The folders that `Dataset.save_to_disk` and `DatasetDict.save_to_disk` write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError
from agentgym_rl.gym import data

from .hub import HubSplit
from .stamp import require

_ONE, _SEVERAL = "state.json", "dataset_dict.json"
"""The files by which a data set, and one of several splits, are recognized."""


class Saved(data.DataFormat):
    """Folders of a data set saved by the package `datasets`, with one split or several."""

    def fits(self, path: Path) -> bool:
        return (path / _ONE).is_file() or (path / _SEVERAL).is_file()

    def open(self, path: Path) -> data.Reader | Mapping[str, data.Reader]:
        datasets = require("datasets", f"to read the folder {path}")
        try:
            found: Any = datasets.load_from_disk(str(path))
        except Exception as error:  # any error of pyarrow, or of a file that is gone
            raise ConfigError(
                f"{path}: a folder of save_to_disk, damaged or incomplete: "
                f"{type(error).__name__}: {error}"
            ) from error
        if (path / _ONE).is_file():
            return HubSplit(found, str(path))
        return {str(name): HubSplit(rows, f"{path}:{name}") for name, rows in found.items()}


SAVED = Saved()
