"""The safetensors files of a model folder: their names, headers, bytes and digests; the model's
settings; and whether weights fit the model.

The module imports little, since processes of servers import it, too.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from .chat import is_dict, is_list
from .errors import ConfigError, WeightsError
from .parse import parse_json


class TensorHead(NamedTuple):
    """The header of a tensor in a safetensors file."""

    dtype: str
    """The dtype in the spelling of the file: `BF16`, `F32`, `I64`, …"""
    shape: tuple[int, ...]
    file: Path
    start: int
    """The position of the tensor's first byte in the file."""
    stop: int
    """The position after the tensor's last byte."""


Heads = dict[str, TensorHead]
"""The headers of tensors by name."""
Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of tensors by name."""
_SHOWN = 3
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MOST_BYTES = 64 << 20
"""The largest file of settings that is read."""


def read_small(file: Path) -> str:
    """Return the text of one of a model folder's files beside the weights.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it cannot be read, is no regular file, is larger than 64 MiB, or is no UTF-8.
    """
    if file.exists() and not file.is_file():
        raise ConfigError(f"{file} is no regular file: copy or download it again")
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{file} has more than {_MOST_BYTES:,} bytes: copy or download it again")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is no UTF-8 ({error}): save it as UTF-8") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file; return an empty one if there is no such file.

    Raises:
        ConfigError: the file cannot be read, or is not a JSON object.
    """
    try:
        text = read_small(file)
    except FileNotFoundError:
        return {}
    try:
        found = parse_json(text)
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except ValueError as error:
        raise ConfigError(
            f"cannot read {file} ({type(error).__name__}: {error}): copy or download it again"
        ) from error
    if not is_dict(found):
        raise ConfigError(f"{file} is a {type(found).__name__}, no JSON object")
    return found


def end_ids(folder: Path, *files: str) -> list[int]:
    """Return the ids that end a reply, from the first of a folder's files that names any.

    Raises:
        ConfigError: a file cannot be read, or an id is no number of a token.
    """
    for name in files:
        found: Any = read_json(folder / name).get("eos_token_id")
        ids: list[Any] = found if is_list(found) else [] if found is None else [found]
        for id in ids:
            if type(id) is not int or not 0 <= id < 1 << 31:
                raise ConfigError(
                    f"{folder / name}: eos_token_id is {found!r:.60}, expected ids of tokens"
                )
        if ids:
            return ids
    return []


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model folder, according to its index if it has one.

    Raises:
        ConfigError: the index cannot be read.
    """
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if not index.is_file():
        return [single] if single.is_file() else []
    try:
        names = {str(name) for name in parse_json(index.read_text())["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read the weight_map of {index}: {error!r}") from error
    if single.is_file() and single.name not in names:
        raise ConfigError(
            f"{folder} has {single.name} and {index.name}, which names other files, so "
            "programs would load different weights. Remove the file that is not this model's"
        )
    return [folder / name for name in sorted(names)]


def tensor_heads(folder: Path) -> dict[str, TensorHead]:
    """Return the tensors in the safetensors files of a model folder, by name; read headers alone.

    Raises:
        ConfigError: there are no such files, one is missing, cut short or damaged, or the index
            names tensors that are not there.
    """
    files = weight_files(folder)
    if not files:
        raise ConfigError(_without_weights(folder))
    heads: dict[str, TensorHead] = {}
    for file in files:
        try:
            with file.open("rb") as opened:
                found = read_header(file, opened)[1]
        except FileNotFoundError as error:
            raise ConfigError(f"{file} is missing. Download or copy it again") from error
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error}") from error
        for name, head in found.items():
            if name in heads:
                raise ConfigError(f"{name} is in {heads[name].file} and in {file}; keep one")
            heads[name] = head
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        promised = parse_json(index.read_text())["weight_map"]
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


def check_shapes(found: Shapes, expected: Shapes, *, what: str) -> None:
    """Check that names and shapes agree with those of the model.

    Raises:
        WeightsError: they do not; the message names the first few that differ.
    """
    problems = [
        *(f"{name} is missing" for name in sorted(expected.keys() - found.keys())),
        *(f"{name} is not of this model" for name in sorted(found.keys() - expected.keys())),
        *(
            f"{name} has shape {list(found[name])}, the model has {list(expected[name])}"
            for name in sorted(expected.keys() & found.keys())
            if tuple(found[name]) != tuple(expected[name])
        ),
    ]
    if problems:
        more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
        raise WeightsError(f"{what} do not fit the model: {'; '.join(problems[:_SHOWN])}{more}")


def link_weights(version: Path, model_dir: Path, folder: Path) -> None:
    """Make the empty `folder` a model folder, of the settings of the model in `model_dir` and links
    to the weights of a `version`.

    Raises:
        OSError: it cannot be written.
    """
    for file in version.glob("model*"):
        (folder / file.name).symlink_to(file.resolve())
    shutil.copyfile(model_dir / "config.json", folder / "config.json")


# ------------------------------------------------------------------ bytes
_TORCH_NAMES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8"},
}
_ROWS, _COLUMNS = 128, 32
"""The shape of a block of 64-bit words; a sum is taken over each of its columns."""
_WORD, _BLOCK = 8, 8 * _ROWS * _COLUMNS


class Stored(NamedTuple):
    """A tensor as it is stored."""

    dtype: str
    """The dtype in the spelling of files: `F32`."""
    shape: tuple[int, ...]
    data: np.ndarray
    """The bytes of it, uint8 [n]."""


def read_stored(head: TensorHead) -> Stored:
    """Return a tensor of a file.

    Raises:
        WeightsError: the file cannot be read, or ends before.
    """
    try:
        with head.file.open("rb", buffering=0) as file:
            file.seek(head.start)
            data = np.fromfile(file, np.uint8, head.stop - head.start)
    except OSError as error:
        raise WeightsError(f"cannot read {head.file}: {error}") from error
    if len(data) != head.stop - head.start:
        raise WeightsError(f"{head.file} is cut short")
    return Stored(head.dtype, head.shape, data)


def summed(name: str, tensor: Stored) -> bytes:
    """Return the name, dtype, shape and sums over the bits of a tensor, to be hashed.

    Words of 64 bits are added modulo 2**64, over each column of blocks of 32 KB; the bytes after
    the last block are taken as they are. So a change of one element always changes the result. This
    takes a third of the time of a copy.
    """
    dtype, shape, data = tensor
    if data.ctypes.data % _WORD:  # in files written by others
        data = data.copy()
    head = f"{name}:torch.{_TORCH_NAMES.get(dtype, dtype)}:{tuple(shape)};".encode()
    whole = len(data) // _BLOCK * _BLOCK
    sums = b""
    if whole:
        words = data[:whole].view(np.int64).reshape(-1, _ROWS, _COLUMNS)
        sums = np.einsum("ijk->ik", words).tobytes()  # twice as fast as words.sum(1)
    return head + sums + data[whole:].tobytes()


def digest(name: str, tensor: Stored) -> str:
    """Return 64 bits, in hex, over name, dtype, shape and every bit of a tensor. It detects torn
    and damaged copies, not an adversary."""
    return blake2b(summed(name, tensor), digest_size=8).hexdigest()


@cache
def base_checksum(model_dir: Path) -> int:
    """Return the CRC-32 of the tensors of a model folder, however split into files; cached per
    process.

    Raises:
        WeightsError: there are none, or they cannot be read.
    """
    try:
        heads = tensor_heads(model_dir)
    except (OSError, ConfigError) as error:
        raise WeightsError(f"cannot read the weights in {model_dir}: {error}") from error
    crc = 0
    for name in sorted(heads):
        crc = zlib.crc32(summed(name, read_stored(heads[name])), crc)
    return crc


def num_parameters(folder: Path) -> int:
    """Return the number of parameters in a model folder; see `tensor_heads`."""
    return sum(math.prod(head.shape) for head in tensor_heads(folder).values())


def text_settings(folder: Path) -> dict[str, Any]:
    """Return the settings in config.json of a model folder; those of its text model, if that is one
    part of several.

    Raises:
        ConfigError: the file cannot be read, or holds no settings.
    """
    file = folder / "config.json"
    try:
        text = read_small(file)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ConfigError(
            f"cannot read the model: {file} is no JSON ({error}): copy or download it again"
        ) from error
    if not is_dict(found):
        raise ConfigError(f"{file} is a {type(found).__name__}, no model's keys")
    inner = found.get("text_config")
    return inner if is_dict(inner) else found


def read_header(file: Path, opened: BinaryIO | RawIOBase) -> tuple[dict[str, str], Heads]:
    """Return the metadata and the tensors of a safetensors file, which is `opened` for reading.

    Raises:
        ConfigError: it is no such file, cut short or damaged.
        OSError: it cannot be read.
    """
    again = "Download or copy it again"
    size = opened.seek(0, os.SEEK_END)
    opened.seek(0)
    length = int.from_bytes(opened.read(8) or b"", "little")
    text = (opened.read(length) or b"") if length <= size - 8 else b""
    if len(text) != length:
        raise ConfigError(f"{file} is cut short: {size} bytes end inside its header. {again}")
    begin = 8 + length
    try:
        header: dict[str, Any] = parse_json(text)
        metadata = dict(header.pop("__metadata__", None) or {})
        heads = {
            name: TensorHead(
                str(it["dtype"]),
                tuple(map(int, it["shape"])),
                file,
                *(begin + int(offset) for offset in it["data_offsets"]),
            )
            for name, it in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is no safetensors file ({error!r}). {again}") from error
    for name, head in heads.items():
        if not begin <= head.start <= head.stop:
            raise ConfigError(f"{file} is damaged: {name} ends before it begins. {again}")
    end = max((head.stop for head in heads.values()), default=begin)
    if size != end:
        what = "cut short" if size < end else "damaged"
        raise ConfigError(f"{file} is {what}: {size} bytes, its header says {end}. {again}")
    return metadata, heads


def header_of(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> tuple[bytes, list[int]]:
    """Return the first bytes of a safetensors file, and the position of each tensor in it; the
    tensors (name, dtype, shape, bytes) follow in this order, without gaps."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    places, end = list[int](), 0
    for name, dtype, shape, size in tensors:
        places.append(end)
        start, end = end, end + size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return head, [len(head) + place for place in places]


def _without_weights(folder: Path) -> str:
    """Return the reason why a folder without safetensors files cannot be used, and advice."""
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


def writes_date(folder: Path) -> bool:
    """Return whether a chat template of a model folder writes the current date.

    Raises:
        ConfigError: a file cannot be read.
    """
    others = [folder / name for name in ("tokenizer_config.json", "chat_template.json")]
    for file in (*template_files(folder).values(), *others):
        if file.exists() and "strftime_now" in read_small(file):
            return True
    return False


def template_files(folder: Path) -> dict[str, Path]:
    """Return the chat templates that a model folder has as files, by name."""
    single = folder / "chat_template.jinja"
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    found = {file.stem: file for file in others}
    return {"default": single, **found} if single.is_file() else found
