"""Where a model's files are: the bundled tiny model, a local folder, or a Hugging Face id."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .errors import ConfigError

BUNDLED = Path(__file__).parent / "models" / "tiny"
"""The tiny Qwen3-architecture model shipped as package data."""


def resolve_model(path: str, *, revision: str | None = None) -> Path:
    """The local folder of a model: "bundled", an existing folder, or a Hugging Face id.

    Only an id touches the network, and only when its files are not in the local cache.

    Raises:
        ConfigError: no such folder, or the hub cannot be reached; says what to do.
    """
    if path == "bundled":
        return BUNDLED
    folder = Path(path).expanduser()
    if folder.is_dir():
        return _checked(folder.resolve())
    if path.count("/") > 1 or path.startswith((".", "~", "/")):
        raise ConfigError(f"model folder {path!r} does not exist (cwd: {Path.cwd()})")
    from huggingface_hub import snapshot_download  # slow import, and only ids need it

    try:
        return _checked(Path(snapshot_download(path, revision=revision)))
    except ConfigError:
        raise
    except Exception as error:  # the hub client raises many unrelated classes
        raise ConfigError(
            f"cannot load model {path!r} from the Hugging Face hub "
            f"({type(error).__name__}: {error}). On a machine without network: run "
            f"`hf download {path}` where there is one, copy the folder, pass --model FOLDER"
        ) from error


def tokenizer_hash(folder: Path) -> str:
    """A hash of the tokenizer and chat template; equal on engine and gateway, or they disagree."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        file = folder / name
        digest.update(file.read_bytes() if file.exists() else b"")
        digest.update(b"\0")
    return digest.hexdigest()


def _checked(folder: Path) -> Path:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).exists():
            raise ConfigError(f"{folder} is no model folder: {name} is missing")
    return folder
