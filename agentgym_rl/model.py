"""Where a model's files are: a bundled tiny model, a local folder, or a Hugging Face id."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

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
    "math": "bundled/math",
    "tools": "bundled/tools",
    "gymnasium:FrozenLake": "bundled/frozenlake",
    "code": "bundled/code",
}
"""By environment id without versions; `bundled` means the first one, with a warning, everywhere
else."""
_VERSION = re.compile(r"-v\d+(?=:|$)")
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def model_folder(config: Config) -> Path:
    """The absolute folder of the configured model.

    Raises:
        ConfigError: see `resolve_model`.
    """
    return resolve_model(model_name(config), revision=config.model.revision)


def reference_folder(config: Config) -> Path | None:
    """Return the folder of the frozen model that `algo.kl` stays close to, if there is one and it
    is not the model that the run begins with.

    Raises:
        ConfigError: see `resolve_model`.
    """
    kl = config.algo.kl
    return resolve_model(kl.reference) if kl.coef and kl.reference != "initial" else None


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
    name = model_name(config)
    if config.model.path == "bundled" and _family(config) not in _WARMED_UP:
        log.warning(
            "no bundled model was made for the environment %s: it gets %s, which knows word "
            "problems of one environment and no other words, and will hardly learn anything here. "
            "Name a model that knows English (--model FOLDER), or teach this one first "
            "(--init sft); --model %s says that it is meant",
            config.env.id,
            name,
            name,
        )
    model = config.model.model_copy(update={"path": _absolute(name)})
    return config.model_copy(update={"model": model, "algo": algo})


def resolve_learning_rate(config: Config, folder: Path) -> Config:
    """Return the configuration with the learning rate for the model in `folder`, if it names none.

    What a model of a million parameters needs destroys one of a hundred million in a step.

    Raises:
        ConfigError: the model has no weights, or they are damaged.
    """
    if config.trainer.learning_rate is not None:
        return config
    heads = tensor_heads(folder)
    size = sum(math.prod(head.shape) for head in heads.values())
    rate = next(rate for below, rate in _LEARNING_RATES if size < below)
    log.info("learning rate %g, for %.3g parameters (trainer.learning_rate sets it)", rate, size)
    trainer = config.trainer.model_copy(update={"learning_rate": rate})
    return config.model_copy(update={"trainer": trainer})


_LEARNING_RATES = ((20e6, 3e-4), (1e9, 3e-5), (10e9, 2e-5), (math.inf, 1e-5))
"""Parameters that a model has less of, and the default learning rate."""


def model_name(config: Config) -> str:
    """`model.path`; instead of `bundled`, the one that was warmed up for the environment."""
    if config.model.path != "bundled":
        return config.model.path
    return _WARMED_UP.get(_family(config), "bundled/math")


def _family(config: Config) -> str:
    """The environment's id without its version."""
    return _VERSION.sub("", config.env.id)


def weights_size(folder: Path) -> int:
    """Bytes of a model folder's safetensors files; 0 where it has none."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


class TensorHead(NamedTuple):
    """A tensor of a safetensors file, without its numbers."""

    dtype: str
    """As the file spells it: `BF16`, `F32`, `I64`, …"""
    shape: tuple[int, ...]
    file: Path


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, by its index where it has one.

    Raises:
        ConfigError: the index cannot be read.
    """
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if not index.is_file():
        return [single] if single.is_file() else []
    try:
        names = {str(name) for name in json.loads(index.read_text())["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read the weight_map of {index}: {error!r}") from error
    if single.is_file() and single.name not in names:
        raise ConfigError(
            f"{folder} has {single.name} and {index.name}, which names other files: programs "
            "would load different weights of it. Remove the one that is not this model's"
        )
    return [folder / name for name in sorted(names)]


def tensor_heads(folder: Path) -> dict[str, TensorHead]:
    """What the safetensors files of a model folder hold, by name; reads their headers alone.

    Raises:
        ConfigError: there are no such files, one is missing, cut short or damaged, or the index
            names tensors that are not there.
    """
    files = weight_files(folder)
    if not files:
        raise ConfigError(_without_weights(folder))
    heads: dict[str, TensorHead] = {}
    for file in files:
        for name, head in _heads_of(file).items():
            if name in heads:
                raise ConfigError(f"{name} is in {heads[name].file} and in {file}; keep one")
            heads[name] = head
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        promised = json.loads(index.read_text())["weight_map"]
        absent = sorted(
            name
            for name, file in promised.items()
            if name not in heads or heads[name].file.name != file
        )
        if absent:
            raise ConfigError(
                f"{index} names {len(absent)} tensors that its files do not hold: "
                f"{_some(absent)}. Download the folder again"
            )
    return heads


def _heads_of(file: Path) -> dict[str, TensorHead]:
    again = "Download or copy it again"
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            text = opened.read(length) if length <= size - 8 else b""
        if len(text) != length:
            raise ConfigError(f"{file} is cut short: {size} bytes end inside its header. {again}")
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        heads = {
            name: TensorHead(str(it["dtype"]), tuple(map(int, it["shape"])), file)
            for name, it in header.items()
        }
        ends = max((int(it["data_offsets"][1]) for it in header.values()), default=0)
    except FileNotFoundError as error:
        raise ConfigError(f"{file} is missing. {again}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{file} is no safetensors file ({error!r}). {again}") from error
    if size != 8 + length + ends:
        what = "cut short" if size < 8 + length + ends else "damaged"
        raise ConfigError(
            f"{file} is {what}: {size} bytes, its header says {8 + length + ends}. {again}"
        )
    return heads


def _without_weights(folder: Path) -> str:
    """Why a folder without safetensors files cannot be used, and what to do."""
    patterns = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "adapter_model.*")
    others = sorted({file.name for pattern in patterns for file in folder.glob(pattern)})
    if not others:
        return f"{folder} has no weights: neither model.safetensors nor its index is there"
    if (folder / "adapter_config.json").exists():
        return (
            f"{folder} holds an adapter ({_some(others)}) and no model: merge it into its base "
            "(peft: merge_and_unload, then save_pretrained) and name that folder"
        )
    return (
        f"{folder} has no safetensors files, only {_some(others)}. Other formats are not loaded: "
        "a pickle can run any code. Convert it where you trust it: "
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW), and copy the "
        "tokenizer's files beside"
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def template_files(folder: Path) -> dict[str, Path]:
    """The chat templates that a model folder has in files, by name."""
    single = folder / "chat_template.jinja"
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    found = {file.stem: file for file in others}
    return {"default": single, **found} if single.is_file() else found


def tokenizer_hash(folder: Path) -> str:
    """A hash of the tokenizer and chat template; equal on engine and gateway, or they disagree."""
    digest = hashlib.blake2b(digest_size=16)
    others = [file for name, file in template_files(folder).items() if name != "default"]
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    for file in (*(folder / name for name in names), *others):
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
