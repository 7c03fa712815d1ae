"""Where a model's files are: a bundled tiny model, a local folder, or a Hugging Face id."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path

from .config import Config
from .errors import ConfigError

log = logging.getLogger(__name__)

_MODELS = Path(__file__).parent / "models"
BUNDLED_MODELS = {
    "bundled/math": _MODELS / "tiny",
    "bundled/tools": _MODELS / "tiny-tools",
    "bundled/frozenlake": _MODELS / "tiny-frozenlake",
    "bundled/code": _MODELS / "tiny-code",
}
"""The tiny Qwen3-architecture models shipped as package data, each warmed up for one family of
environments (docs/tiny-model.md)."""
BUNDLED = BUNDLED_MODELS["bundled/math"]

_WARMED_UP = {
    "tools": "bundled/tools",
    "gymnasium:FrozenLake": "bundled/frozenlake",
    "code": "bundled/code",
}
"""By environment id without versions; `bundled` means the first one everywhere else."""
_VERSION = re.compile(r"-v\d+(?=:|$)")
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def model_folder(config: Config) -> Path:
    """The absolute folder of the configured model.

    Raises:
        ConfigError: see `resolve_model`.
    """
    return resolve_model(model_name(config), revision=config.model.revision)


def resolve_model(path: str, *, revision: str | None = None) -> Path:
    """The absolute folder of a model: a bundled one, an existing folder, or a Hugging Face id.

    Only an id touches the network, and only when its files are not in the local cache. Of
    `bundled` alone the environment decides which one it is: see `model_folder`.

    Raises:
        ConfigError: no such folder, or the hub cannot be reached; says what to do.
    """
    if path in BUNDLED_MODELS:
        return BUNDLED_MODELS[path]
    if path == "bundled":
        raise ConfigError(f"which of the bundled models? There are {', '.join(BUNDLED_MODELS)}")
    folder = Path(os.path.expanduser(path))
    if folder.exists():
        return _checked(folder.resolve())
    if not _HUB_ID.fullmatch(path):
        raise ConfigError(
            f"no folder {path!r} here (in {Path.cwd()}), and it is no Hugging Face id either: "
            f"those are `owner/name` or `name`; this package has {', '.join(BUNDLED_MODELS)}"
        )
    log.info("no folder %r here: asking the Hugging Face hub", path)
    from huggingface_hub import snapshot_download  # slow import, and only ids need it

    try:
        downloaded = Path(snapshot_download(path, revision=revision))
    except Exception as error:  # the hub client raises many unrelated classes
        raise ConfigError(
            f"no folder {path!r} here (in {Path.cwd()}), and the Hugging Face hub did not give a "
            f"model of that id ({type(error).__name__}: {error}). On a machine without network: "
            f"run `hf download {path}` where there is one, copy the folder, pass --model FOLDER"
        ) from error
    return _checked(downloaded.resolve())


def resolve_paths(config: Config) -> Config:
    """The same configuration with the model of `bundled` named, and the paths of local folders
    (model, reference model, weights) absolute.

    So written into a run's `config.toml`, it means the same from any folder, and with any
    environment. Hugging Face ids stay as they are.
    """
    if config.weights.folder:
        shared = Path(os.path.expanduser(config.weights.folder)).resolve()
        weights = config.weights.model_copy(update={"folder": str(shared)})
        config = config.model_copy(update={"weights": weights})
    kl = config.algo.kl
    if kl.reference not in ("", "initial"):
        kl = kl.model_copy(update={"reference": _absolute(kl.reference)})
    algo = config.algo.model_copy(update={"kl": kl})
    model = config.model.model_copy(update={"path": _absolute(model_name(config))})
    return config.model_copy(update={"model": model, "algo": algo})


def model_name(config: Config) -> str:
    """`model.path`; instead of `bundled`, the one that was warmed up for the environment."""
    if config.model.path != "bundled":
        return config.model.path
    return _WARMED_UP.get(_VERSION.sub("", config.env.id), "bundled/math")


def weights_size(folder: Path) -> int:
    """Bytes of a model folder's safetensors files; 0 where it has none."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def tokenizer_hash(folder: Path) -> str:
    """A hash of the tokenizer and chat template; equal on engine and gateway, or they disagree."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        file = folder / name
        digest.update(file.read_bytes() if file.exists() else b"")
        digest.update(b"\0")
    return digest.hexdigest()


def _absolute(path: str) -> str:
    """Of a local folder; a bundled model's name and an id stay as they are."""
    folder = Path(os.path.expanduser(path))
    local = path not in BUNDLED_MODELS and folder.is_dir()
    return str(folder.resolve()) if local else path


def _checked(folder: Path) -> Path:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).exists():
            raise ConfigError(f"{folder} is no model folder: {name} is missing")
    return folder
