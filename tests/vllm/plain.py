"""What the tests compare a server with: transformers in float32, and models made for a test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from agentgym_rl.engines.embedded.module_decoder import cache_argument
from agentgym_rl.models.resolve import BUNDLED


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
