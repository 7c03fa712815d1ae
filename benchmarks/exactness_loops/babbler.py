"""A tiny model that samples replies which are hard to record, and several versions of its weights.

The bundled models hardly ever write thoughts or wrong calls. This one learns only the forms of
`speech.reply`, which takes a minute.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models.resolve import BUNDLED

from .speech import TOOLS, conversation, reply, tool
from .templates import ENDS

MAX_MODEL_LEN = 1024
SPECIAL = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
"""The special tokens of GLM's template, in addition to the bundled tokenizer's own."""
STEPS = 120
_ROWS = 12
_RATE = 0.03
"""The learning rate of Muon; a third of it for the embeddings, which AdamW trains."""


def tokenizer() -> Tokenizer:
    """Return the bundled tokenizer with the special tokens of all templates."""
    made = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    made.no_padding()
    made.no_truncation()
    made.add_special_tokens(list(SPECIAL))
    return made


def make(
    folder: Path, chats: Mapping[str, ChatFormat], *, steps: int, versions: int, seed: int
) -> list[dict[str, Tensor]]:
    """Train a model for `steps` on random replies in all `chats`, and save it to `folder`.

    Returns the weights of `versions` policies: those of its last steps; the last one is saved.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more threads only spin on shared cores
    words = tokenizer()
    model: Any = _network(words)
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = torch.optim.Muon(hidden, lr=_RATE, momentum=0.95, weight_decay=0.0)
    adamw = torch.optim.AdamW(others, lr=_RATE / 3, betas=(0.9, 0.95))
    rows, found = _rows(chats, random.Random(seed)), []
    for step in range(steps):
        rate = min(1.0, (step + 1) / 5) * max(0.1, 1 - step / steps)
        muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"] = _RATE * rate, _RATE / 3 * rate
        _loss(model, [next(rows) for _ in range(_ROWS)]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in (muon, adamw):
            optimizer.step()
            optimizer.zero_grad()
        if step >= steps - versions:
            found.append(_weights(model))
    _save(model, words, folder)
    return found


def _network(words: Tokenizer) -> Qwen3ForCausalLM:
    shape = Qwen3Config(
        vocab_size=words.get_vocab_size(),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_MODEL_LEN,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=[words.token_to_id(end) for end in ENDS],
    )
    return Qwen3ForCausalLM(shape)


def _save(model: Any, words: Tokenizer, folder: Path) -> None:
    model.eval().save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (folder / name).write_text((BUNDLED / name).read_text())
    ends = {"eos_token_id": model.config.eos_token_id}
    (folder / "generation_config.json").write_text(json.dumps(ends))


def _weights(model: Any) -> dict[str, Tensor]:
    """Return the weights as engines take them: without a tensor for the tied head."""
    state = model.state_dict()
    return {name: t.clone() for name, t in state.items() if name != "lm_head.weight"}


def _rows(
    chats: Mapping[str, ChatFormat], chance: random.Random
) -> Iterator[tuple[list[int], int]]:
    """Yield the token ids of rows, and the length of the prompt, of which only the end is kept."""
    while True:
        name = chance.choice(list(chats))
        chat, with_tools = chats[name], name != "chatml"
        tools = [tool(one) for one in TOOLS] if with_tools else None
        prompt = chat.prompt(conversation(chance, with_tools=with_tools), tools)
        prompt = prompt[-chance.randrange(8, 48) :]
        text = reply(chance, opened=name == "opened")
        end = "<|im_end|>"
        if name == "glm":
            end = "<|observation|>" if "<tool_call>" in text else "<|user|>"
        yield prompt + chat.encode(text + end), len(prompt)


def _loss(model: Any, rows: list[tuple[list[int], int]]) -> Tensor:
    """Return the loss over the tokens of replies."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    said = torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, (tokens, fed) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        said[row, fed : len(tokens)] = True
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[:, :-1][said[:, 1:]])
    return cross_entropy(logits, ids[:, 1:][said[:, 1:]])
