"""What the tests compare a server with: transformers in float32, and models made for a test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arl_embedded.module_decoder import cache_argument
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from agentgym_rl.models.resolve import BUNDLED

ROUNDING = 1e-4
"""The share by which two right forwards differ in the chance of a token, at most."""


def endless_model(folder: Path) -> Path:
    """The bundled model without an end-of-sequence token: replies are as long as asked for."""
    shutil.copytree(BUNDLED, folder)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (folder / name).exists():
            values = json.loads((folder / name).read_text())
            kept = {key: value for key, value in values.items() if not key.startswith("eos_token")}
            (folder / name).write_text(json.dumps(kept))
    return folder


def weights_of(version: int, *, noise: float = 0.02) -> dict[str, Tensor]:
    """Policy versions for tests: 0 is the bundled model, the others have noise of their own."""
    base = {n: t.float() for n, t in load_file(BUNDLED / "model.safetensors").items()}
    draw = torch.Generator().manual_seed(version)
    return {
        name: tensor + (noise * torch.randn(tensor.shape, generator=draw) if version else 0.0)
        for name, tensor in base.items()
    }


class PlainForward:
    """Log-probs of every token of a sequence, by a forward of one version's weights at a time."""

    def __init__(self, model_dir: Path = BUNDLED) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32
        ).eval()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._model.load_state_dict(dict(tensors), strict=False)
        self._model.tie_weights()

    @torch.no_grad()
    def logits(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        """[T, V]: what each token of `output` was drawn from."""
        return self._model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]

    def logprobs(
        self, prompt: Sequence[int], output: Sequence[int], *, temperature: float = 1.0
    ) -> np.ndarray:
        """[T]: of each token of `output`."""
        return _of(self.logits(prompt, output) / temperature, output)

    @torch.no_grad()
    def replayed(
        self,
        old: Mapping[str, Tensor],
        new: Mapping[str, Tensor],
        prompt: Sequence[int],
        output: Sequence[int],
        boundary: int,
        *,
        temperature: float = 1.0,
    ) -> np.ndarray:
        """[T]: of each token, the ones from `boundary` on by `new` weights on the KV of `old`."""
        tokens = torch.tensor([[*prompt, *output]])
        cut = len(prompt) + boundary - 1  # the first token that the new weights were fed
        kept = {cache_argument(self._model): DynamicCache()}
        self.load(old)
        first = self._model(tokens[:, :cut], **kept).logits
        self.load(new)
        second = self._model(tokens[:, cut:], **kept).logits
        rows = torch.cat([first, second], dim=1)[0, len(prompt) - 1 : -1]
        return _of(rows / temperature, output)


def _of(logits: Tensor, output: Sequence[int]) -> np.ndarray:
    return logits.log_softmax(-1).gather(-1, torch.tensor(output)[:, None])[:, 0].numpy()


def kept_of(
    chances: Sequence[float],
    *,
    nested: bool,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> dict[int, float]:
    """An independent implementation of truncation: the tokens that are kept, with their chances.

    nested: whether `top_p` is a share of what `top_k` leaves, not of all.
    """
    likely = sorted(enumerate(chances), key=lambda pair: -pair[1])[:top_k]
    total = sum(chance for _, chance in likely) if nested else 1.0
    kept, mass = dict[int, float](), 0.0
    for index, chance in likely:
        if kept and (mass >= top_p * total or chance < min_p * likely[0][1]):
            break
        kept[index] = chance
        mass += chance
    return kept


def on_the_edge(chances: Sequence[float], *, nested: bool, **cut: Any) -> bool:
    """Whether rounding decides what is kept: two right forwards differ by as much."""
    sides: list[dict[int, float]] = []
    for near in (1 - ROUNDING, 1 + ROUNDING):
        moved = {name: value if name == "top_k" else value * near for name, value in cut.items()}
        sides.append(kept_of(chances, nested=nested, **moved))
    kept = kept_of(chances, nested=nested, **cut)
    least = (1 - ROUNDING) * min(kept.values())
    tie = any(chance > least for index, chance in enumerate(chances) if index not in kept)
    return tie or sides[0].keys() != sides[1].keys()


def worst_difference(
    forward: PlainForward,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    versions: Sequence[int],
    *,
    weights: Mapping[int, Mapping[str, Tensor]],
    of: Iterable[bool] | None = None,
) -> float:
    """Largest |reported log-prob - plain forward of the reported version|; `of` picks tokens."""
    reported, labels = np.array(logprobs), np.array(versions)
    picked = np.ones(len(labels), bool) if of is None else np.array(list(of))
    worst = 0.0
    for version in sorted(set(labels[picked].tolist())):
        forward.load(weights[version])
        plain = forward.logprobs(prompt, token_ids)
        mine = picked & (labels == version)
        worst = max(worst, float(np.abs(plain - reported)[mine].max()))
    return worst
