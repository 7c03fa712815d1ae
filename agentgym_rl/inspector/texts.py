"""The texts of tokens, from the run's own tokenizer, without torch and without the network."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.models.resolve import BUNDLED, BUNDLED_MODELS

_FILE = "tokenizer.json"


class Texts:
    """The texts of one run's tokens; the tokenizer is loaded at its first use."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._tokenizer: Tokenizer | None = None
        self._turn = threading.Lock()

    def of(self, ids: Sequence[int], config: Mapping[str, Any]) -> list[str]:
        """Return a piece of text for each token; together they are the decoded row. If several
        tokens make one character, all but the last of them are empty.

        Raises:
            ConfigError: the tokenizer is not on this machine.
        """
        with self._turn:
            if self._tokenizer is None:
                self._tokenizer = _load(self._run, config)
        return pieces(self._tokenizer, ids)


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return a piece of text for each token; see `Texts.of`."""
    stream = DecodeStream(skip_special_tokens=False)
    found = [stream.step(tokenizer, int(token)) or "" for token in ids]
    # Add the rest if the last tokens begin a character that no token completes.
    whole = tokenizer.decode([int(token) for token in ids], skip_special_tokens=False)
    said = "".join(found)
    if found and whole != said and whole.startswith(said):
        found[-1] += whole[len(said) :]
    return found


def _load(run: Path, config: Mapping[str, Any]) -> Tokenizer:
    path = str(config.get("model", {}).get("path", ""))
    folders = [run / "export", run / "init", *_model_folders(path)]
    for folder in folders:
        if (folder / _FILE).is_file():
            try:
                return Tokenizer.from_file(str(folder / _FILE))
            except Exception as error:  # tokenizers raises plain Exceptions
                raise ConfigError(f"cannot read {folder / _FILE}: {error}") from error
    raise ConfigError(
        f"the tokenizer of model {path!r} is not on this machine: looked in {run / 'export'} and "
        "for the model; copy its tokenizer.json into the run's export/"
    )


def _model_folders(path: str) -> list[Path]:
    if path == "bundled":
        return [BUNDLED]
    if path in BUNDLED_MODELS:
        return [BUNDLED_MODELS[path]]
    folder = Path(path).expanduser()
    if not path or folder.is_dir():
        return [folder]
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(path, _FILE)
    except ValueError:  # neither an existing folder, nor a model id
        return []
    return [Path(cached).parent] if isinstance(cached, str) else []
