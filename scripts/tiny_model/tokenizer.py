"""The tokenizers: byte-level BPEs of at most 640 tokens that pack the boilerplate into a few.

Little is split off before merging (digits and newlines, where numbers must be copied; nothing
else), so merges run across words: the system prompt with its tool schema becomes a handful of
tokens. Any text still encodes, byte by byte if need be.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

from family import PAD, TURN_END, Family, Stage, Vocabulary
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentgym_rl.core import Message, ToolSpec

TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def build_tokenizer(family: Family, *, seed: int, num_texts: int) -> PreTrainedTokenizerFast:
    """Return the family's tokenizer, trained on `num_texts` demonstrations; deterministic by
    seed."""
    vocabulary = family.vocabulary
    bare = _untrained(vocabulary)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary.max_size,
        special_tokens=[*vocabulary.control, *vocabulary.tags],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(_texts(family, seed, num_texts), trainer)
    return _finished(bare, family)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    for key in ("is_local", "local_files_only"):  # they describe how it was loaded
        config.pop(key, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # a name transformers 4 and 5 both know
    file.write_text(json.dumps(config, indent=2) + "\n")


def render(
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    generate: bool,
) -> str:
    """Return the text of a conversation; with `generate`, open for the next assistant turn."""
    text = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tools=[dict(tool) for tool in tools] or None,
        tokenize=False,
        add_generation_prompt=generate,
    )
    assert isinstance(text, str)
    return text


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of a token of the vocabulary."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def _untrained(vocabulary: Vocabulary) -> Tokenizer:
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in vocabulary.splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bare.decoder = decoders.ByteLevel()
    return bare


def _texts(family: Family, seed: int, count: int) -> list[str]:
    """Yield rendered demonstrations, split at control tokens and tags, which no merge may cross."""
    vocabulary = family.vocabulary
    renderer = _finished(_untrained(vocabulary), family)
    rng = random.Random(f"tokenizer/{seed}")
    borders = re.compile("|".join(map(re.escape, vocabulary.control + vocabulary.tags)))
    texts: list[str] = []
    for _ in range(count):
        shown = family.conversation(rng, Stage.EVEN)
        text = render(renderer, shown.messages, shown.tools, generate=False)
        texts += [piece for piece in borders.split(text) if piece]
    return texts


def _finished(bare: Tokenizer, family: Family) -> PreTrainedTokenizerFast:
    spec = json.loads(bare.to_str())
    for token in spec["added_tokens"]:
        token["special"] = token["content"] in family.vocabulary.control
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)),
        eos_token=TURN_END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=family.size.context,
    )
    tokenizer.chat_template = TEMPLATE.read_text().rstrip("\n")
    return tokenizer
