"""The location of a model's files: a bundled tiny model, a local folder, or a Hugging Face id."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_rl.config import AlgoConfig, Config, ModelConfig, Section
from agentgym_rl.core import (
    ConfigError,
    end_ids,
    hint,
    is_dict,
    read_json,
    template_files,
    text_settings,
)
from agentgym_rl.core.model_folder import read_small

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

_MODELS = Path(__file__).parent
BUNDLED_MODELS = {
    "bundled/math": _MODELS / "tiny",
    "bundled/tools": _MODELS / "tiny-tools",
    "bundled/frozenlake": _MODELS / "tiny-frozenlake",
    "bundled/code": _MODELS / "tiny-code",
    "bundled/bugs": _MODELS / "tiny-bugs",
    "bundled/tictactoe": _MODELS / "tiny-tictactoe",
    "bundled/agents": _MODELS / "tiny-agents",
}
"""The tiny Qwen3-architecture models shipped as package data, each fine-tuned for one family of
environments, the last for agent frameworks on `math` (docs/tiny-model.md)."""
BUNDLED = BUNDLED_MODELS["bundled/math"]

CANARIES = (
    "What is 12 * 34?\n",
    '<|im_start|>user\n{"name": "add"}<|im_end|>\n',
    "  Grüße, 世界 \t🙂",
)
"""The texts that tokenizers of different models split differently."""

_WARMED_UP = {
    "math": "bundled/math",
    "tools": "bundled/tools",
    "gymnasium:FrozenLake": "bundled/frozenlake",
    "code": "bundled/code",
    "harbor:bugs": "bundled/bugs",
    "tictactoe": "bundled/tictactoe",
}
"""The bundled model of each environment id without version; for all other environments `bundled`
means bundled/math, with a warning."""
RECORDED = "model.json"
"""The file in a run's folder with the digests of its first model."""
_VERSION = re.compile(r"-v\d+(?=:|$)")
_FOR_OTHERS = ("onnx/*", "openvino/*", "coreml/*", "tflite/*", "original/*")
"""The folders of a hub repository with copies of the weights for other programs."""
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def model_folder(model: ModelConfig, env_id: str) -> Path:
    """Return the absolute folder of the model for an environment.

    Raises:
        ConfigError: see `resolve_model`.
    """
    return resolve_model(model_name(model, env_id), revision=model.revision)


def model_of_run(
    model: ModelConfig, env_id: str, run: Path, *, given: str = "", flag: str = "--model"
) -> Path:
    """Return the absolute folder of the model that the run in `run` began with; `given`: its place
    as the user names it by `flag`, if it is not where it was.

    Raises:
        ConfigError: the model is not here, or that in `given` has other digests than the run
            recorded.
    """
    try:
        was = read_json(run / RECORDED)
    except ConfigError:  # damaged
        was = {}
    known = ", ".join(f"{name} {str(digest)[:12]}" for name, digest in was.items())
    if given:
        found, now = resolve_model(given), model_digests(resolve_model(given))
        if differ := [name for name in now if was.get(name, now[name]) != now[name]]:
            raise ConfigError(
                f"{flag} {given} has other {' and '.join(differ)} than the model that {run} began "
                f"with ({known}): name that model"
            )
        return found
    path = Path(os.path.expanduser(model.path))
    if path.is_absolute() and not path.exists():
        raise ConfigError(
            f"the model that {run} began with is gone: no folder {path} (digests: "
            f"{known or 'not recorded'}). Put it back, or name its place: {flag} FOLDER"
        )
    return model_folder(model, env_id)


def local_folder(model: ModelConfig, env_id: str) -> Path | None:
    """Return the folder of the model like `model_folder`, but None instead of using the hub.

    Raises:
        ConfigError: the folder is not a model folder.
    """
    path = model_name(model, env_id)
    here = path in BUNDLED_MODELS or Path(os.path.expanduser(path)).exists()
    return resolve_model(path) if here else None


def other_folders(algo: AlgoConfig) -> dict[Path, str]:
    """Return the folders of the models that trainer ranks use beside the policy, other than that of
    the model that the run begins with, each with its description in errors.

    Raises:
        ConfigError: see `resolve_model`.
    """
    return {resolve_model(it.model): it.title for it in algo.other_models if it.model}


def check_tokenizer(folder: Path, model_dir: Path, *, who: str) -> None:
    """Check that the model in `folder` has every token of the model in `model_dir` with the same
    id, and tokenizes texts in the same way; it may have more tokens. Warn if its chat template or
    its end-of-reply tokens differ: it was not trained on such prompts, or would end replies
    otherwise.

    Raises:
        ConfigError: the tokenizers differ; the message calls the model in `folder` `who`.
    """
    theirs, ours = _tokenizer(folder), _tokenizer(model_dir)
    known = theirs.get_vocab()
    rest = [(token, i) for token, i in sorted(ours.get_vocab().items()) if known.get(token) != i]
    for token, number in rest[:1]:
        raise ConfigError(
            f"{who} {folder} has another tokenizer than the policy {model_dir}: {len(rest)} tokens "
            f"differ; {token!r} is {known.get(token, 'absent')} there and {number} here. Log-probs "
            "of tokens can only be compared between models of one tokenizer: choose such a model"
        )
    for text in CANARIES:
        found = [it.encode(text, add_special_tokens=False).ids for it in (theirs, ours)]
        if found[0] != found[1]:
            raise ConfigError(
                f"{who} {folder} splits texts otherwise than the policy {model_dir}: {text!r} is "
                f"{found[0]} there and {found[1]} here; choose a model of the same tokenizer"
            )
    for difference in _other_prompts(folder, model_dir, theirs, ours):
        log.warning(
            "%s %s %s: its log-probs of the policy's texts may say little of what it would do with "
            "prompts of its own. Choose a model that was trained as the policy %s is prompted, or "
            "give both the same",
            *(who, folder, difference, model_dir),
        )


def _other_prompts(
    folder: Path, model_dir: Path, theirs: Tokenizer, ours: Tokenizer
) -> Iterator[str]:
    """Yield the differences between the prompts, and the ends of replies, of two models."""
    their_lines, our_lines = (_template(one).splitlines() for one in (folder, model_dir))
    if their_lines != our_lines:
        pairs = enumerate(zip_longest(their_lines, our_lines, fillvalue=""), 1)
        line, (there, here) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
        yield (
            f"has another chat template than the policy; line {line} is {there!r:.120} there and "
            f"{here!r:.120} here"
            if their_lines
            else "has no chat template, and the policy has one"
        )
    their_ends, our_ends = _ends(folder, theirs), _ends(model_dir, ours)
    if their_ends != our_ends:
        named = [
            ", ".join(f"{tokenizer.id_to_token(id)!r} ({id})" for id in sorted(ends)) or "nothing"
            for ends, tokenizer in ((their_ends, theirs), (our_ends, ours))
        ]
        yield f"ends a reply with {named[0]}, and the policy with {named[1]}"


def _template(folder: Path) -> str:
    """Return the chat template of a model folder; "" if it has none."""
    if (file := template_files(folder).get("default")) is not None:
        return read_small(file).strip()
    for name in ("tokenizer_config.json", "chat_template.json"):
        found: Any = read_json(folder / name).get("chat_template")
        if isinstance(found, list):  # several, by name
            found = {one.get("name"): one.get("template") for one in found if is_dict(one)}
        if is_dict(found):
            found = found.get("default") or next(iter(found.values()), "")
        if isinstance(found, str) and found.strip():
            return found.strip()
    return ""


def _ends(folder: Path, tokenizer: Tokenizer) -> set[int]:
    """Return the ids that end a reply, from the files of a model folder."""
    ids = set(end_ids(folder, "generation_config.json", "config.json"))
    token = read_json(folder / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if is_dict(token) else token
    named = tokenizer.token_to_id(text) if isinstance(text, str) else None
    return ids if named is None else {*ids, named}


def _tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a model folder.

    Raises:
        ConfigError: the file is not a tokenizer.
    """
    from tokenizers import Tokenizer  # many processes import this module, and few need it

    file = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing else
        raise ConfigError(f"{file} is no tokenizer: {error}; copy or download it again") from error


def resolve_model(path: str, *, revision: str | None = None, only: Sequence[str] = ()) -> Path:
    """Return the absolute folder of a model: a bundled one, an existing folder, or a Hugging Face
    id, of which `only` these files are needed (default: all).

    Only an id uses the network, and only if its files are not in the local cache. The bare name
    `bundled` is refused, since it depends on the environment: see `model_folder`.

    Raises:
        ConfigError: no such folder, or the hub cannot be reached; the message has the remedy.
    """
    if path in BUNDLED_MODELS:
        return BUNDLED_MODELS[path]
    if path == "bundled" or path.startswith("bundled/"):
        near = hint("model", path).removeprefix(". ")
        raise ConfigError(
            f"--model {path}: which of the bundled models? There are {', '.join(BUNDLED_MODELS)}"
            f"{near and f'. {near}'}"
        )
    folder = Path(os.path.expanduser(path))
    if folder.exists():
        return _checked(folder.resolve(), only)
    if folder.is_absolute():
        raise ConfigError(
            f"no folder {path}, and it is no Hugging Face id (`owner/name`) either; if it was "
            "moved, name its new place with --model FOLDER"
        )
    if not _HUB_ID.fullmatch(path):
        raise ConfigError(
            f"no folder {path!r} here (in {Path.cwd()}), and it is no Hugging Face id either: "
            f"those are `owner/name` or `name`; this package has {', '.join(BUNDLED_MODELS)}"
            f"{hint('model', path)}"
        )
    log.info("no folder %r here: asking the Hugging Face hub", path)
    from huggingface_hub import snapshot_download  # slow import, and only ids need it

    try:
        found = snapshot_download(
            path, revision=revision, allow_patterns=[*only] or None, ignore_patterns=[*_FOR_OTHERS]
        )
    except Exception as error:  # the hub client raises many unrelated classes
        why = hint("download", path, {"error": error, "revision": revision}) or (
            f"the Hugging Face hub gave no such model ({type(error).__name__}: {error})"
        )
        raise ConfigError(f"no folder {path!r} here (in {Path.cwd()}), and {why}") from error
    return _checked(Path(found).resolve(), only)


def resolve_paths(config: Config) -> Config:
    """Return the configuration with `bundled` replaced by the model's name, and with absolute
    paths of local folders (model, weights, and the models that sections name).

    Written into a run's `config.toml`, the result means the same from any folder, and with any
    environment. Hugging Face ids stay as they are.
    """
    if config.weights.folder:
        shared = Path(os.path.expanduser(config.weights.folder)).resolve()
        weights = config.weights.model_copy(update={"folder": str(shared)})
        config = config.model_copy(update={"weights": weights})
    name = model_name(config.model, config.env.id)
    if config.model.path == "bundled" and _family(config.env.id) not in _WARMED_UP:
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
    sections = {
        name: section.located(_absolute, env_id=config.env.id)
        for name, section in config
        if isinstance(section, Section)
    }
    return config.model_copy(update={**sections, "model": model})


def model_name(model: ModelConfig, env_id: str) -> str:
    """Return `model.path`; for `bundled`, the name of the model that was fine-tuned for the
    environment."""
    if model.path != "bundled":
        return model.path
    return _WARMED_UP.get(_family(env_id), "bundled/math")


def _family(env_id: str) -> str:
    """Return an environment's id without its version."""
    return _VERSION.sub("", env_id)


def weights_size(folder: Path) -> int:
    """Return the bytes of a model folder's safetensors files; 0 if it has none."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


_COMPARED_BYTES = 1 << 20


def model_digests(folder: Path) -> dict[str, str]:
    """Return digests of a model's `tokenizer`, with its chat template, and of its `weights`: their
    sizes and the first MiB of each file, which has names, shapes and the first numbers."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            head = opened.read(_COMPARED_BYTES)
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + head)
    return {"tokenizer": tokenizer_hash(folder), "weights": digest.hexdigest()}


def tokenizer_hash(folder: Path) -> str:
    """Return a hash of tokenizer and chat template, which must be equal on engine and gateway."""
    digest = hashlib.blake2b(digest_size=16)
    others = [file for name, file in template_files(folder).items() if name != "default"]
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    rare = [folder / name for name in ("special_tokens_map.json", "chat_template.json")]
    others += [file for file in rare if file.exists()]
    for file in (*(folder / name for name in names), *others):
        digest.update(file.read_bytes() if file.exists() else b"")
        digest.update(b"\0")
    return digest.hexdigest()


def _absolute(path: str) -> str:
    """Return a local folder's absolute path; a bundled model's name and an id stay the same."""
    folder = Path(os.path.expanduser(path))
    local = path not in BUNDLED_MODELS and folder.is_dir()
    return str(folder.resolve()) if local else path


def _checked(folder: Path, needed: Sequence[str]) -> Path:
    for name in needed or ("config.json", "tokenizer.json"):
        if not (folder / name).exists():
            found = f"{name} is missing" if folder.is_dir() else "it is a file"
            raise ConfigError(
                f"{folder} is no model folder: {found}; expected one as `hf download` makes: "
                "config.json, tokenizer.json, *.safetensors (GGUF files cannot be trained)"
            )
    text_settings(folder)  # for its errors: a damaged folder is reported before anything starts
    return folder
