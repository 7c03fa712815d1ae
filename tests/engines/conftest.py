"""Small random models, an engine served in this process, and a plain forward to compare with."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from arl_embedded.app import App
from arl_embedded.engine import EmbeddedEngine
from arl_embedded.journal import Journal
from arl_embedded.model import load_model
from arl_embedded.section import EmbeddedEngineConfig
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentgym_rl.engines import HttpEngine
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import serving

VOCAB = 640  # the bundled tokenizer's
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _build(kind: str) -> Any:
    grouped = {**_SMALL, "num_key_value_heads": 2}
    match kind:
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**grouped, head_dim=16, tie_word_embeddings=True))
        case "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**grouped, tie_word_embeddings=False))
        case "llama":
            return LlamaForCausalLM(
                LlamaConfig(**grouped, rope_parameters=_LLAMA3, mlp_bias=True, attention_bias=True)
            )
        case "mistral":
            return MistralForCausalLM(MistralConfig(**grouped, sliding_window=8))
        case "neox":
            return GPTNeoXForCausalLM(GPTNeoXConfig(**_SMALL))
        case "gpt2":
            small = {k: _SMALL[k] for k in ("vocab_size", "initializer_range", "bos_token_id")}
            return GPT2LMHeadModel(
                GPT2Config(**small, n_embd=64, n_layer=2, n_head=4, n_positions=256, eos_token_id=2)
            )
    raise ValueError(kind)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a random model by kind, with the bundled tokenizer."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            torch.manual_seed(1)
            model = _build(kind)
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):  # zero at birth: a lost bias would go unseen
                    torch.nn.init.normal_(parameter, std=0.3)
            path = tmp_path_factory.mktemp(kind)
            model.save_pretrained(path)
            for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(BUNDLED / file, path / file)
            made[kind] = path
        return made[kind]

    return folder


Served = Callable[..., AbstractAsyncContextManager[tuple[HttpEngine, EmbeddedEngine]]]


@pytest.fixture(scope="session")
def served() -> Served:
    """`async with served(folder, max_num_seqs=4) as (client, engine)`: over real HTTP."""

    @asynccontextmanager
    async def _served(
        folder: Path,
        *,
        seed: int = 0,
        journal: Path | None = None,
        ends: bool = True,
        timeout_s: float = 20.0,
        **options: Any,
    ) -> AsyncIterator[tuple[HttpEngine, EmbeddedEngine]]:
        torch.set_num_threads(1)
        config = EmbeddedEngineConfig(**{"device": "cpu", "max_model_len": 256, **options})
        model = load_model(folder, config)
        if not ends:  # a reply of known length: no end-of-sequence token
            model = dataclasses.replace(model, eos_ids=[])
        with ExitStack() as stack:
            engine = EmbeddedEngine(
                model,
                model_dir=folder,
                config=config,
                seed=seed,
                weight_version="0.0",
                journal=stack.enter_context(closing(Journal(journal))) if journal else None,
            )
            app = App(engine, served_model_name="tiny")
            async with serving(app, host="127.0.0.1", port=0) as url, engine.running():
                client = HttpEngine(url, timeout_s=timeout_s)
                try:
                    yield client, engine
                finally:
                    await client.close()

    return _served


Logprobs = Callable[..., list[float]]


@pytest.fixture(scope="session")
def plain_logprobs() -> Logprobs:
    """Log-probs of `output` after `prompt` by a plain forward of the model's own code."""

    def logprobs(
        model: Path | torch.nn.Module,
        prompt: Sequence[int],
        output: Sequence[int],
        temperature: float = 1.0,
    ) -> list[float]:
        module: Any = _plain(model) if isinstance(model, Path) else model
        with torch.inference_mode():
            logits = module(torch.tensor([[*prompt, *output]]), use_cache=False).logits[0]
        scores = torch.log_softmax(logits[len(prompt) - 1 : -1].float() / temperature, dim=-1)
        return scores.gather(1, torch.tensor(output)[:, None]).squeeze(1).tolist()

    return logprobs


@functools.lru_cache
def _plain(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def load_plain() -> Callable[[Path], Any]:
    """The folder's model in float32; shared, not to be changed."""
    return _plain


@pytest.fixture(scope="session")
def load_changed() -> Callable[[Path, Mapping[str, torch.Tensor]], Any]:
    """A copy of the folder's model with other weights."""

    def load(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Any:
        model = copy.deepcopy(_plain(folder))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(tensors[name])
        return model

    return load


@pytest.fixture(scope="session")
def perturbed() -> Callable[[Path, int], dict[str, torch.Tensor]]:
    """Weights of a folder's model with noise added: a policy version that can be told apart."""

    def tensors(folder: Path, seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        found: Mapping[str, torch.Tensor] = dict(_plain(folder).named_parameters())
        return {name: t.detach() + 0.05 * torch.randn_like(t) for name, t in found.items()}

    return tensors


@pytest.fixture(scope="session")
def call() -> Callable[..., Any]:
    """`await call(url, "POST", body)` -> (status, decoded JSON or text)."""

    async def _call(url: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        data = json.dumps(body) if isinstance(body, dict) else body
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, data=data) as response,
        ):
            text = await response.text()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(text) if is_json else text

    return _call
