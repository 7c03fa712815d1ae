"""What tokens say: the run's own tokenizer, without torch and without the network."""

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
    """Of one run; the tokenizer is read when it is first asked for."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._tokenizer: Tokenizer | None = None
        self._turn = threading.Lock()

    def of(self, ids: Sequence[int], config: Mapping[str, Any]) -> list[str]:
        """A piece for each token; together they are the decoded row. Of a character that several
        tokens make, all but the last of them have nothing.

        Raises:
            ConfigError: the tokenizer is nowhere on this machine.
        """
        with self._turn:
            if self._tokenizer is None:
                self._tokenizer = _load(self._run, config)
        return pieces(self._tokenizer, ids)


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """See `Texts.of`."""
    stream = DecodeStream(skip_special_tokens=False)
    found = [stream.step(tokenizer, int(token)) or "" for token in ids]
    # What the last tokens began, and nothing ended.
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
            except Exception as error:  # tokenizers raises its own base of all errors
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
    except ValueError:  # neither a folder that is here, nor an id
        return []
    return [Path(cached).parent] if isinstance(cached, str) else []
