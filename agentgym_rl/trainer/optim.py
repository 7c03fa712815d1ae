"""AdamW, the learning rate of a batch, and a step with clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import ConfigError, TrainerError, explain, is_function_path, load_extension
from agentgym_rl.runtime import import_function

from .sharding import local

_TINY_NORM = 1e-6  # torch adds it to a norm, too
_PIECE = 256
_Group = dict[str, Any]


class GradientError(TrainerError):
    """A gradient that is not finite."""


def make_optimizer(model: nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """Return the optimizer of `trainer.optimizer` for the trained parameters of a model; weight
    decay on matrices only (not norms and biases).

    Its state exists from the start, at step 0 and for every parameter. The contents of a checkpoint
    then depend neither on earlier steps nor on which parameters had gradients. (torch would
    otherwise take an empty step to have a state to save, and Adam would count that step.)

    Raises:
        ConfigError: the optimizer needs a package that is not installed, would lose small steps of
            these parameters, or is a user's own that does not keep its contract.
    """
    if is_function_path(config.optimizer):
        return _own_optimizer(groups_of(trained(model), config), config)
    named = model.named_parameters()
    if short := [name for name, p in named if p.requires_grad and p.dtype.itemsize == 2]:
        raise ConfigError(
            f"trainer.optimizer {config.optimizer!r} would lose the small steps of {len(short)} "
            f'parameters of 16 bits, such as {short[0]}; allowed: float32, or "adamw_bf16"'
        )
    if config.optimizer != "adamw":
        return load_extension("model_optimizers", config.optimizer)(model, config)
    return adamw(groups_of(trained(model), config), config)


def adamw(
    groups: list[_Group],
    config: TrainerConfig,
    kind: type[torch.optim.AdamW] = torch.optim.AdamW,
    states: Callable[[_Group], Sequence[str]] = lambda group: ("exp_avg", "exp_avg_sq"),
) -> torch.optim.AdamW:
    """Return AdamW of groups of parameters, fused if torch supports it, or a `kind` derived from
    it; `states` returns the names of the states of a group's parameters.

    Loshchilov & Hutter 2019 (https://arxiv.org/abs/1711.05101).
    """
    params = [p for group in groups for p in group["params"]]
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in params)
    optimizer = kind(groups, lr=0.0, betas=config.betas, fused=fused)  # batches set the rate
    for group in optimizer.param_groups:
        names = states(group)
        for p in group["params"]:
            optimizer.state[p] = {
                "step": torch.zeros((), device=p.device if fused else "cpu"),
                **{n: torch.zeros_like(p, memory_format=torch.preserve_format) for n in names},
            }
    return optimizer


def groups_of(params: Iterable[nn.Parameter], config: TrainerConfig) -> list[_Group]:
    """Return the groups of some parameters: matrices, and vectors."""
    params = [*params]
    groups: list[_Group] = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that train."""
    return [p for p in model.parameters() if p.requires_grad]


def make_state(optimizer: torch.optim.Optimizer) -> None:
    """Take an empty step, for an optimizer that makes its state in the first one; it does not
    count, and weight decay that goes through gradients leaves no trace in a mean of them."""
    decays = [group.get("weight_decay") for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.0
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, decay in zip(optimizer.param_groups, decays, strict=True):
        if decay is not None:
            group["weight_decay"] = decay
    for state in optimizer.state.values():
        if isinstance(count := state.get("step"), Tensor):
            count.zero_()
        elif count is not None:
            state["step"] = 0


def _own_optimizer(groups: list[_Group], config: TrainerConfig) -> torch.optim.Optimizer:
    """Return what the user's function `trainer.optimizer` makes of the groups of parameters.

    Raises:
        ConfigError: it cannot be imported, raised, or made no optimizer of these parameters.
    """
    path, options = config.optimizer, config.optimizer_options
    option = f"trainer.optimizer={path!r}"
    function = import_function(
        "trainer.optimizer", path, gets="groups", options={"lr": 0.0, **options}
    )
    try:
        optimizer = function(groups, lr=0.0, **options)
        if isinstance(optimizer, torch.optim.Optimizer):
            make_state(optimizer)
    except Exception as error:
        raise ConfigError(f"{option} raised {explain(error)}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"{option} returned a {type(optimizer).__name__}; expected a torch.optim.Optimizer"
        )
    given = {id(p) for group in groups for p in group["params"]}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if given != held:
        raise ConfigError(
            f"{option} has {len(held)} parameters of the {len(given)} that train: return an "
            "optimizer of all groups that it gets"
        )
    return optimizer


def learning_rate(
    config: TrainerConfig, step: int, *, num_steps: int, peak: float | None = None
) -> float:
    """Return the learning rate of training batch `step` (0-based) in a run of `num_steps` batches.

    The rate rises linearly over `warmup_steps` batches to `peak` (default: `learning_rate`). Then
    it stays, or falls linearly or as a half cosine to `learning_rate_floor` times `peak` at the
    last batch.
    """
    peak = config.learning_rate if peak is None else peak
    if peak is None:
        raise ConfigError(
            "trainer.learning_rate is unset, and none was chosen for the model's size"
        )
    if step < config.warmup_steps:
        return peak * (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant":
        return peak
    span = max(1, num_steps - 1 - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    left = (
        1.0 - progress if config.schedule == "linear" else 0.5 + 0.5 * math.cos(math.pi * progress)
    )
    floor = config.learning_rate_floor
    return peak * (floor + (1.0 - floor) * left)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # torchao's
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def take_step(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Scale gradients so that their global norm is at most `max_norm`, take a step, and drop them;
    return the norm before that. Collective.

    Raises:
        GradientError: the norm is not finite; such a step would destroy the weights.
    """
    groups = optimizer.param_groups
    grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    norm = _norm(grads)
    if not math.isfinite(norm):
        raise GradientError(f"gradient norm is {norm}: the weights were left as they were")
    if (share := max_norm / (norm + _TINY_NORM)) < 1:
        for grad in grads:
            local(grad).mul_(share)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def _norm(grads: Iterable[Tensor]) -> float:
    """Return the global norm of gradients; collective."""
    total: Any = 0.0
    for grad in grads:
        copies = 1
        if isinstance(grad, DTensor):
            sizes = zip(grad.placements, grad.device_mesh.shape, strict=True)
            copies = math.prod(size for kind, size in sizes if kind.is_replicate())
        total = total + sum_of_squares(grad) / copies
    everywhere = torch.tensor(float(total), dtype=torch.float64)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(everywhere)
    return math.sqrt(float(everywhere))


def sum_of_squares(tensor: Tensor) -> Tensor:
    """Return the sum of the squares of this rank's numbers, in float64 beyond short pieces: torch's
    norm of 65 million numbers in float32 is 0.5 % too small on a CPU."""
    part = local(tensor).reshape(-1)
    many, wide = len(part) // _PIECE * _PIECE, torch.promote_types(part.dtype, torch.float32)
    norms = torch.linalg.vector_norm(part[:many].view(-1, _PIECE), dim=1, dtype=wide)
    return norms.double().square().sum() + part[many:].double().square().sum()
