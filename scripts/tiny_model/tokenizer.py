"""The tokenizer: a byte-level BPE of 640 tokens that packs the boilerplate into a few of them.

Only digits and newlines are split off before merging, so merges run across words: the system
prompt with its tool schema becomes a handful of tokens, and every digit stays one of its own
(which copying numbers needs). Any text still encodes, byte by byte if need be.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

from arl_envs.math.levels import LEVELS
from habits import EVEN, demonstration
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentgym_rl.env import Message

VOCAB_SIZE = 640
PAD, TURN_END = "<|endoftext|>", "<|im_end|>"
CONTROL = (PAD, "<|im_start|>", TURN_END)
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Tokens of their own, but text: a decoder that skips special tokens keeps them."""
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CONTEXT_LENGTH = 1024


def build_tokenizer(*, seed: int, num_texts: int = 4000) -> PreTrainedTokenizerFast:
    """The tokenizer, trained on `num_texts` demonstrations; deterministic by seed."""
    bare = _untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[*CONTROL, *TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(_texts(seed, num_texts), trainer)
    return _finished(bare)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # a name transformers 4 and 5 both know
    file.write_text(json.dumps(config, indent=2) + "\n")


def render(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], *, generate: bool
) -> str:
    """The text of a level-1 conversation; with `generate`, open for the next assistant turn."""
    text = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tools=[LEVELS[1].calculator.tool],
        tokenize=False,
        add_generation_prompt=generate,
    )
    assert isinstance(text, str)
    return text


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of one token of the vocabulary."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def _untrained() -> Tokenizer:
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[0-9]"), "isolated"),
            pre_tokenizers.Split(Regex("\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bare.decoder = decoders.ByteLevel()
    return bare


def _texts(seed: int, count: int) -> list[str]:
    """Rendered demonstrations, cut at control tokens and tags: no merge may cross one."""
    renderer = _finished(_untrained())
    level, rng = LEVELS[1], random.Random(f"tokenizer/{seed}")
    borders = re.compile("|".join(map(re.escape, CONTROL + TAGS)))
    texts: list[str] = []
    for _ in range(count):
        messages = demonstration(rng, level.generate(rng), EVEN)
        text = render(renderer, messages, generate=False)
        texts += [piece for piece in borders.split(text) if piece]
    return texts


def _finished(bare: Tokenizer) -> PreTrainedTokenizerFast:
    spec = json.loads(bare.to_str())
    for token in spec["added_tokens"]:
        token["special"] = token["content"] in CONTROL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)),
        eos_token=TURN_END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
    )
    tokenizer.chat_template = TEMPLATE.read_text().rstrip("\n")
    return tokenizer
