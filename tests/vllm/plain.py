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
from transformers import AutoModelForCausalLM

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
    def logprobs(self, tokens: Sequence[int]) -> np.ndarray:
        """[T]; entry t is of token t itself, the first one is 0."""
        ids = torch.tensor(tokens)
        logits = self._model(ids[None]).logits[0, :-1].log_softmax(-1)
        found = logits.gather(-1, ids[1:, None])[:, 0].numpy()
        return np.concatenate([[0.0], found])


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
        plain = forward.logprobs([*prompt, *token_ids])[len(prompt) :]
        mine = picked & (labels == version)
        worst = max(worst, float(np.abs(plain - reported)[mine].max()))
    return worst
