"""A model is loaded from slices: never whole, and to the last bit as transformers loads it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from trainer_samples import save_recurrent_model, save_tiny_model

from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import Policy
from agentgym_rl.trainer.slices import Slices
from agentgym_rl.weights import load_slices, load_whole, rows_of
from tests.e2e.forked import run_all
from tests.kit.cases import cases
from tests.kit.moe import FAMILIES, NO_REPLAY
from tests.weights.test_source import _MODELS, _SIZES, saved

CHILD = Path(__file__).with_name("slices_child.py")
GRADIENTS = Path(__file__).with_name("gradients_child.py")
DEEP = T.LlamaConfig(
    **{**_SIZES, "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 1024},
    max_position_embeddings=128,
    tie_word_embeddings=True,
)
DEEP.num_hidden_layers = 12
TRIAL = 8 << 20
"""The bytes of a trial: what is outside of blocks, a block with the buffers of its exchange in
gloo, and the activations of 22 tokens."""
FROZEN_TRIAL = 6 << 20
"""The same for a model that keeps no activation for a gradient."""
CONFIGS: dict[str, Any] = {
    **FAMILIES,
    **{f"without replay: {name}": config for name, (config, _) in NO_REPLAY.items()},
    "gpt2": T.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4),
    "mistral": T.MistralConfig(**_SIZES, sliding_window=8),
    "gemma 3": T.Gemma3TextConfig(**_SIZES, head_dim=8, sliding_window=8),
    "phi 3": T.Phi3Config(**_SIZES),
    "mamba": T.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4),
}
FOLDERS: dict[str, Callable[[Path], Path]] = {
    **{f"folder: {name}": make for name, make in _MODELS.items()},
    **{
        name: lambda folder, config=config: saved(copy.deepcopy(config), folder)
        for name, config in CONFIGS.items()
    },
    "recurrent": save_recurrent_model,
    "tied": save_tiny_model,
}


def named(model: Any) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def ties(model: Any) -> set[tuple[str, str]]:
    state = list(model.state_dict(keep_vars=True).items())
    return {(a, b) for a, one in state for b, other in state if a < b and one is other}


@cases("name", FOLDERS)
def test_the_slices_of_ranks_are_the_model_that_transformers_loads(tmp_path, name):
    folder = FOLDERS[name](tmp_path / "m")
    for dtype in (torch.float32, torch.bfloat16):
        whole = T.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        copy_of_it, names = load_whole(folder, dtype=dtype)
        assert copy_of_it.generation_config == whole.generation_config
        assert named(copy_of_it).keys() == named(whole).keys()
        assert all(torch.equal(t, named(whole)[n]) for n, t in named(copy_of_it).items())
        for size in (1, 3):
            ranks = [load_slices(folder, dtype=dtype, rank=r, size=size) for r in range(size)]
            for rank, (model, own_names, slices, _) in enumerate(ranks):
                assert ties(model) == ties(whole)
                assert (own_names.shapes, own_names.tied) == (names.shapes, names.tied)
                found, expected = named(model), named(whole)
                assert list(found) == list(expected)
                for key, tensor in expected.items():
                    mine = found[key]
                    if isinstance(tensor, torch.nn.Parameter):
                        assert mine.is_meta
                        assert mine.is_contiguous()
                        assert mine.requires_grad == tensor.requires_grad
                        mine, tensor = slices[mine], tensor[rows_of(tensor.shape, rank, size)]
                    assert mine.dtype == tensor.dtype
                    assert torch.equal(mine, tensor), key


def test_rows_are_divided_as_torch_divides_them():
    for length in range(12):
        for size in (1, 2, 3, 5):
            tensor = torch.arange(length)
            chunks = [part.tolist() for part in tensor.chunk(size) if len(part)]
            found = [tensor[rows_of(tensor.shape, rank, size)].tolist() for rank in range(size)]
            assert [part for part in found if part] == chunks


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_rank_takes_its_shards_and_a_tensor_while_it_loads(tmp_path, size):
    folder = saved(DEEP, tmp_path / "m")
    told = [f"file://{tmp_path}/meet", str(size), folder]
    run_all(CHILD, *((told[0], r, *told[1:], tmp_path / f"{r}.json") for r in range(size)))
    for rank in range(size):
        for way, (peak, kept) in json.loads((tmp_path / f"{rank}.json").read_text()).items():
            whole, most = size * kept, 1.15 * kept + TRIAL
            if way == "frozen":  # its blocks are kept in bfloat16; it computes no gradient
                whole, most = 2 * whole, 1.15 * kept + FROZEN_TRIAL
            assert 0.9 * kept <= peak <= most, way
            assert most < whole or whole == kept, "a whole copy, in float32, would be too much"


def test_a_frozen_model_is_that_of_the_folder_with_rounded_blocks(tiny_model, world):
    whole = Policy.load(tiny_model, world).model.state_dict()
    frozen = Policy.load(tiny_model, world, frozen=True, compute_dtype="bfloat16").model
    assert frozen.state_dict().keys() == whole.keys()
    for name, tensor in frozen.state_dict().items():
        assert (tensor.dtype == torch.bfloat16) == name.endswith("_proj.weight"), name
        assert torch.equal(tensor, whole[name].to(tensor.dtype)), name


def test_a_trial_computes_in_the_dtype_in_which_ranks_train(tiny_model, world, monkeypatch):
    """In bfloat16, which rounds rows of other lengths otherwise, a right model could be refused."""
    tried: list[torch.dtype] = []
    try_it = Policy._try

    def spy(policy: Any, *args: Any) -> bool:
        forward = policy.model.forward

        def note(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            tried.append(output.logits.dtype)
            return output

        monkeypatch.setattr(policy.model, "forward", note)
        return try_it(policy, *args)

    monkeypatch.setattr(Policy, "_try", spy)
    policy = Policy.load(tiny_model, world, master_dtype=torch.bfloat16)
    assert tried
    assert set(tried) == {torch.float32}
    assert policy.packs
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}


@cases("where", ["the CPU", "the weights"])
def test_an_adapter_is_placed_where_the_weights_are(tiny_model, world, where):
    """Its numbers cannot come from the weights, which are not there yet."""
    model = load_slices(tiny_model, dtype=torch.float32, rank=0, size=1)
    slices, layer = Slices(world, model.slices), model.model.get_output_embeddings()
    before = dict(model.model.named_parameters())

    def add() -> None:
        with slices.adopting(model.model):
            numbers = torch.arange(6.0).view(3, 2).to(layer.weight)
            if where == "the weights":
                numbers = layer.weight[:3, :2] * 2
            layer.added = torch.nn.Parameter(numbers)
            layer.weight.requires_grad_(False)

    if where == "the weights":
        with pytest.raises(TrainerError, match=r"lm_head\.added is not finite at the start"):
            add()
        return
    add()
    after = dict(model.model.named_parameters())
    added = after.pop("lm_head.added")
    assert all(after[name] is before[name] for name in before)
    assert added.is_meta
    assert not layer.weight.requires_grad
    assert torch.equal(model.slices[added], torch.arange(6.0).view(3, 2))


@pytest.mark.slow
def test_gradients_of_micro_batches_are_held_in_shards_and_the_same(tiny_model, tmp_path):
    run_all(GRADIENTS, *((f"file://{tmp_path}/meet", rank, tiny_model) for rank in (0, 1)))


def test_offloaded_slices_never_go_to_the_device_of_the_mesh(world):
    """All of them at once would fill a GPU that they are to leave free; "meta" stands for it."""
    layer: Any = torch.nn.Linear(2, 3, bias=False, device="meta")
    numbers = torch.arange(6.0).view(3, 2)
    mesh = DeviceMesh("meta", [0], _init_backend=False)
    slices = Slices(world, {layer.weight: numbers})
    with slices.sharding(layer, torch.device("cpu")):
        whole = DTensor.from_local(layer.weight.detach(), mesh, [Shard(0)])
        layer.weight = torch.nn.Parameter(whole)
    assert isinstance(layer.weight, DTensor)
    assert layer.weight.requires_grad
    assert layer.weight.device.type == "cpu"
    assert torch.equal(layer.weight.to_local(), numbers)
