"""A trial of a model, and of the user's own parts of training, before a run starts anything: it
finds in seconds what a rank would refuse.

    python -m arl_trial.model_process CONFIG_FILE ANSWER_FILE

Names and shapes are always compared with the model's folder. Packing is tried with the model
itself; for a large model, with a small random model of the same architecture.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentgym_rl.algo import check_own_parts
from agentgym_rl.config import Config, load_config
from agentgym_rl.core import ConfigError, TrainerError, adapter_of, num_parameters
from agentgym_rl.models import model_folder, other_folders
from agentgym_rl.trainer import Policy, World, add_adapter, join_world
from agentgym_rl.weights import load_outline

from .own_optimizer import check_optimizer

_log = logging.getLogger(__name__)

_MOST_PARAMETERS = 400_000_000
"""The largest number of parameters of a model that is loaded here; in float32 they take 1.6 GB."""
_SMALL = {
    "num_hidden_layers": 4,
    "vocab_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
"""The maximum values of a small model; heads and other attention settings stay as they are."""


def refusal(config: Config, model_dir: Path, world: World) -> str:
    """Return why the configured training would refuse a part of the user's own, the model in
    `model_dir` or another frozen one; "" if no obstacle is found."""
    try:
        check_own_parts(config.algo)
        check_optimizer(config.trainer)
        _try(model_dir, config, world)
        if (adapter := adapter_of(config)) is not None:  # other models have none
            config = config.model_copy(update={adapter.place: type(adapter)()})
        for folder in sorted(other_folders(config.algo)):
            _try(folder, config, world)
    except (ConfigError, TrainerError) as error:
        return str(error)
    return ""


def _try(model_dir: Path, config: Config, world: World) -> None:
    """Check that the model in the folder can be trained; else raise ConfigError or TrainerError."""
    model, _ = load_outline(model_dir, dtype=torch.float32)
    if (adapter := adapter_of(config)) is not None:
        add_adapter(model, adapter, model_dir=model_dir, seed=config.seed)
    if config.trainer.attention not in ("auto", "rows"):  # needs the GPU that a rank will have
        return
    size = num_parameters(model_dir)
    try:
        if size <= _MOST_PARAMETERS:
            Policy.configured(config, model_dir, world)
        else:
            _try_small(model_dir, world)
    except TrainerError as error:
        raise TrainerError(f"{error} (arl docs models lists what trains)") from error


def _try_small(model_dir: Path, world: World) -> None:
    """Check that a small model of the same kind can be packed; else raise TrainerError."""
    try:
        settings: Any = AutoConfig.from_pretrained(model_dir, local_files_only=True)
        text = settings.get_text_config()
        for name, most in _SMALL.items():
            value = getattr(text, name, None)
            if isinstance(value, int) and value > most:
                setattr(text, name, most)
        for name in ("layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type"):
            kinds = getattr(text, name, None)
            if isinstance(kinds, list) and len(kinds) > text.num_hidden_layers:
                setattr(text, name, kinds[: text.num_hidden_layers])
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            if getattr(text, name, None) is not None:  # beyond the small vocabulary; some need one
                setattr(text, name, 0)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(settings)
    except Exception as error:  # some architectures cannot be shrunk: a rank will find out
        _log.warning("no small model of the kind in %s could be made: %r", model_dir, error)
        return
    Policy(model.float(), world)


def main(config_file: str, answer_file: str) -> None:
    """Write {"refusal": reason} to the answer file; the reason is "" without a refusal."""
    config = load_config(Path(config_file))
    torch.set_num_threads(config.trainer.num_threads)
    with join_world() as world:
        answer = {"refusal": refusal(config, model_folder(config.model, config.env.id), world)}
    Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
