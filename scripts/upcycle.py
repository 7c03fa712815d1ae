"""Make a mixture of experts from a dense Qwen3 model.

    python scripts/upcycle.py --model=bundled/math --out=DIR [--experts=4 --top=2 --noise=0.01]

Each expert begins as the dense model's feed-forward network, and the weights of a token's experts
sum to 1: without noise, the mixture computes what the dense model does. The noise (in times of a
matrix's standard deviation) makes the experts differ, so that they can learn different things.
After Komatsuzaki et al., "Sparse Upcycling", https://arxiv.org/abs/2212.05055.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentgym_rl.models import resolve_model

_MLP = ("gate_proj", "up_proj", "down_proj")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a folder, or the name of a bundled model")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--top", type=int, default=2, help="experts of each token")
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not 1 <= args.top <= args.experts:
        parser.error(f"--top={args.top} of --experts={args.experts}: must be 1 to that number")
    folder = Path(resolve_model(args.model))
    dense = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if not isinstance(dense.config, Qwen3Config):
        parser.error(f"{folder} has a {dense.config.model_type} model; this program reads qwen3")
    torch.manual_seed(args.seed)
    mixture = Qwen3MoeForCausalLM(config_of(dense.config, args.experts, args.top))
    mixture.load_state_dict(weights_of(dense.state_dict(), mixture.state_dict(), args.noise))
    mixture.to(torch.bfloat16).save_pretrained(args.out)
    for file in folder.iterdir():
        if not (args.out / file.name).exists() and file.suffix != ".safetensors":
            shutil.copy(file, args.out)
    parameters = sum(p.numel() for p in mixture.parameters())
    print(f"wrote {args.out}: {args.experts} experts, {parameters:,} parameters")


def config_of(dense: Qwen3Config, experts: int, top: int) -> Qwen3MoeConfig:
    """Return the configuration of the mixture."""
    given = dense.to_dict()
    for key in ("model_type", "architectures", "layer_types"):
        given.pop(key, None)
    return Qwen3MoeConfig(
        **given,
        num_experts=experts,
        num_experts_per_tok=top,
        moe_intermediate_size=dense.intermediate_size,
        norm_topk_prob=True,
    )


def weights_of(
    dense: dict[str, torch.Tensor], made: dict[str, torch.Tensor], noise: float
) -> dict[str, torch.Tensor]:
    """Return the weights of the mixture, of which `made` has the names and the random routers."""
    found = dict(made)
    for name, tensor in dense.items():
        if not any(part in name for part in _MLP):
            found[name] = tensor
    for name, tensor in made.items():
        layer, _, kind = name.rpartition(".experts.")
        if not layer:
            continue
        if kind == "gate_up_proj":
            copied = torch.cat([dense[f"{layer}.{part}.weight"] for part in _MLP[:2]])
        else:
            copied = dense[f"{layer}.{kind}.weight"]
        found[name] = copied + noise * copied.std() * torch.randn(tensor.shape)
    return found


if __name__ == "__main__":
    main()
