"""Special tokens are those that transformers gives to a template, wherever they are named."""

import json

import pytest

from agentgym_rl.core import ConfigError
from agentgym_rl.gateway import ChatFormat
from tests.kit.cases import cases

HI = [{"role": "user", "content": "hi"}]
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "think_token", "image_token", "boi")
SHOWN = "".join(f"[{{{{ {name} if {name} is defined else '-' }}}}]" for name in NAMES)
"""A template without these names in its text would not look for them."""
START, END = "<|im_start|>", "<|im_end|>"
TABLE = {"0": {"content": "<unk>", "special": True}}
FOLDERS = {
    "config": {"config": {"bos_token": START}},
    "object": {"config": {"bos_token": {"__type": "AddedToken", "content": START}}},
    "none": {"config": {"bos_token": None, "eos_token": None}},
    "map": {"map": {"bos_token": START, "eos_token": {"content": END, "lstrip": False}}},
    "map_over_config": {"config": {"bos_token": END}, "map": {"bos_token": START}},
    "map_is_ignored": {"config": {"added_tokens_decoder": TABLE}, "map": {"bos_token": START}},
    "extra": {"config": {"extra_special_tokens": {"think_token": "<think>", "boi": START}}},
    "extra_objects": {
        "config": {"extra_special_tokens": {"boi": {"__type": "AddedToken", "content": START}}}
    },
    "extra_list": {"config": {"extra_special_tokens": [START]}},
    "extra_in_map": {"map": {"extra_special_tokens": {"boi": START}}},
    "extra_in_both": {
        "config": {"extra_special_tokens": {"think_token": "<think>"}},
        "map": {"extra_special_tokens": [START]},
    },
    "own_names": {"config": {"image_token": START}, "map": {"think_token": "<think>"}},
    "explicit": {"config": {"model_specific_special_tokens": {"boi": START}}},
}


def _theirs(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    render = tokenizer.apply_chat_template
    return (
        render(HI, tokenize=False, add_generation_prompt=True),
        render(HI, tokenize=True, return_dict=False, add_generation_prompt=True),
    )


@cases("files", FOLDERS.values(), ids=list(FOLDERS))
def test_special_tokens_are_those_of_transformers(folder_with, files, monkeypatch):
    from agentgym_rl.gateway.template import special_tokens

    monkeypatch.setattr(special_tokens, "_of_class", lambda folder, names: {})  # none has any
    folder = folder_with(opening=SHOWN, **files)
    ours = ChatFormat.load(folder)
    text, ids = _theirs(folder)
    assert ours.render(HI, None) == text
    assert ours.prompt(HI, None) == ids


@pytest.mark.slow
def test_a_class_has_defaults_of_its_own(folder_with, caplog):
    folder = folder_with(
        opening="{{- bos_token + unk_token -}}", settings={"tokenizer_class": "GPT2Tokenizer"}
    )
    text = ChatFormat.load(folder).render(HI, None)
    assert text == _theirs(folder)[0]
    assert text.startswith("<|endoftext|><|endoftext|><|im_start|>")
    assert not caplog.records


@pytest.mark.slow
def test_a_tokenizer_that_transformers_cannot_load_is_warned_of(folder_with, caplog):
    folder = folder_with(opening="{{- cls_token -}}", config={"padding_side": "up"})
    ChatFormat.load(folder)
    assert "uses cls_token, which no file of the folder names" in caplog.text


ENDS = "generation_config.json"


@cases("end", [[[2]], 2.5, True, "2", -1, 10**30])
def test_an_end_that_is_no_token_is_refused(folder_with, end):
    folder = folder_with()
    (folder / ENDS).write_text(json.dumps({"eos_token_id": end}))
    with pytest.raises(ConfigError, match=f"{ENDS}: eos_token_id is"):
        ChatFormat.load(folder)


@cases("config", [{"bos_token": "\ud800"}, {"added_tokens_decoder": {"x": {"content": "<a>"}}}])
def test_a_token_that_cannot_be_one_is_refused(folder_with, config):
    with pytest.raises(ConfigError, match=r"surrogates not allowed|has the id 'x'"):
        ChatFormat.load(folder_with(config=config))


@cases("name", ["chat_template.jinja", "tokenizer_config.json", ENDS])
def test_a_file_that_is_no_text_is_named(folder_with, name):
    folder = folder_with()
    file = folder / name
    for make in (
        lambda: file.write_bytes("{}".encode("utf-16")),
        lambda: file.symlink_to("/dev/zero"),
    ):
        file.unlink(missing_ok=True)
        make()
        with pytest.raises(ConfigError, match=r"no UTF-8|no regular file|no chat template"):
            ChatFormat.load(folder)


@cases("name", ["tokenizer_config.json", "special_tokens_map.json"])
@cases("text", ["{", "[]", "[" * 100_000], ids="abc")
def test_a_damaged_file_is_named(folder_with, name, text):
    folder = folder_with(settings={})
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        ChatFormat.load(folder)
