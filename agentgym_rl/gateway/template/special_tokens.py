"""The special tokens of a model folder, by the names that chat templates have for them.

They are in several files, some of which later versions of transformers ignore, and tokenizer
classes have defaults. The rules are those of `PreTrainedTokenizerBase.from_pretrained` of
transformers 5 (https://github.com/huggingface/transformers).
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from agentgym_rl.core import ConfigError, is_dict, read_json, text_settings
from agentgym_rl.core.model_folder import read_small

_log = logging.getLogger(__name__)

_EXTRA, _OLD_EXTRA, _DECODER = (
    "extra_special_tokens",
    "additional_special_tokens",
    "added_tokens_decoder",
)
_NAMED, _SUFFIX = "model_specific_special_tokens", "_token"
_STANDARD = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_ASK = """\
import json, sys
from transformers import AutoTokenizer
found = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True).special_tokens_map
print(json.dumps({"special_tokens_map": found}))
"""
_LONGEST_S = 180.0
"""The time for an import of transformers on a busy machine."""
_SHOWN = 300
_asked: dict[tuple[str, str], dict[str, str]] = {}
"""The results of transformers, by folder and the texts of its files."""


def special_tokens(folder: Path, wanted: Set[str]) -> dict[str, str]:
    """Return the special tokens of a model folder by their names. `wanted`: the names that its
    templates use.

    transformers is imported, in a process of its own, only if a template uses a name that no file
    has: it may be a default of the tokenizer's class.

    Raises:
        ConfigError: a file cannot be read.
    """
    settings = _settings(folder)
    found = {name: text for name, value in _named(settings) if (text := _text(value)) is not None}
    named = {*settings, *found}
    unknown = sorted(name for name in wanted - named if name.endswith(_SUFFIX))
    if unknown:
        defaults = _of_class(folder, unknown)
        found |= {name: defaults[name] for name in unknown if name in defaults}
    return found


def add_special_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    """Add the tokens that other files of a folder name in addition to tokenizer.json, so that a
    text is never split inside one of them.

    A token without an id gets the next one, as in transformers, if the model has one more.

    Raises:
        ConfigError: a file cannot be read.
    """
    settings = _settings(folder)
    table = settings.get(_DECODER)
    decoder = table if is_dict(table) else {}
    ids = list(decoder)
    if wrong := [id for id in ids if not (id.isascii() and id.isdigit() and len(id) < 20)]:
        raise ConfigError(f"{folder}: {_DECODER} has the id {wrong[0]!r:.40}, expected numbers")
    values = [decoder[id] for id in sorted(ids, key=int)]
    values += [value for _, value in _named(settings)]
    extra = settings.get(_EXTRA) or settings.get(_OLD_EXTRA)
    values += extra if isinstance(extra, list) else []
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    limit = text_settings(folder).get("vocab_size") if (folder / "config.json").exists() else None
    for value in values:
        text = _text(value)
        if not text or text in known:
            continue
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        if tokenizer.token_to_id(text) is None and not (isinstance(limit, int) and size < limit):
            continue
        known.add(text)
        how = {"lstrip", "rstrip", "single_word", "normalized"}
        given = {key: value[key] for key in how & value.keys()} if is_dict(value) else {}
        special = value.get("special", True) if is_dict(value) else True
        tokenizer.add_tokens([AddedToken(text, special=special, **given)])


def _settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a folder's tokenizer, with those of special_tokens_map.json, which
    takes precedence in folders without a table of added tokens, and else is ignored."""
    settings = read_json(folder / "tokenizer_config.json")
    if _DECODER not in settings:
        extra = settings.get(_EXTRA)
        settings |= read_json(folder / "special_tokens_map.json")
        if is_dict(extra) and not is_dict(settings.get(_EXTRA)):
            settings[_NAMED] = extra
    return settings


def _named(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of special tokens."""
    for name, value in settings.items():
        if name in _STANDARD or name.endswith(_SUFFIX):
            yield name, value
    for table in (settings.get(_NAMED), settings.get(_EXTRA)):
        if is_dict(table):
            yield from table.items()


def _text(value: Any) -> str | None:
    """Return the text of a token, which may have settings of its own."""
    text = value.get("content") if is_dict(value) else value
    return text if isinstance(text, str) else None


def _of_class(folder: Path, names: list[str]) -> dict[str, str]:
    """Return the special tokens that transformers gives a folder's tokenizer; none, with a
    warning, if it cannot load it."""
    files = ("tokenizer_config.json", "special_tokens_map.json", "config.json")
    texts = (read_small(file) for name in files if (file := folder / name).exists())
    key = (str(folder.resolve()), "\0".join(texts))
    if key not in _asked:
        _asked[key] = _ask(folder, names)
    return _asked[key]


def _ask(folder: Path, names: list[str]) -> dict[str, str]:
    quiet = {"USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    argv = [sys.executable, "-c", _ASK, str(folder)]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_LONGEST_S,
            env={**os.environ, **quiet},
        )
        why = done.stderr.strip()[-_SHOWN:]
        lines = done.stdout.splitlines()
        if not done.returncode and lines:
            return json.loads(lines[-1])["special_tokens_map"]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        why = repr(error)[:_SHOWN]
    _log.warning(
        "the chat template in %s uses %s, which no file of the folder names, and transformers "
        "cannot load its tokenizer (%s): it is empty in prompts. If the model has such a token, "
        "name it in tokenizer_config.json",
        folder, ", ".join(names), why,
    )  # fmt: skip
    return {}
