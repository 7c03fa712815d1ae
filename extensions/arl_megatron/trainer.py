"""The training of a `GPTModel`: the `Stepper`'s batches and losses, with the gradients and the
groups of ranks of Megatron-Core, and AdamW. A checkpoint has the tensors of the model's folder, and
the means of the optimizer in the same form: any number of ranks reads it."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError, TrainerError
from agentgym_rl.storage import Manifest, read_manifest
from agentgym_rl.trainer import Checkpoints, Stepper, World, make_optimizer

from .cpu import stand_in
from .kind import check_megatron

_FILE = "megatron.pt"
_MEANS = ("exp_avg", "exp_avg_sq")


def load(config: Config, world: World, model_dir: Path) -> MegatronTrainer:
    """Load the trainer of a rank; see `TrainerKind`."""
    if problem := next(check_megatron(config, True), ""):
        raise ConfigError(problem)
    stand_in()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it names each optional package that is not there
        from .model import MegatronPolicy

        trainer, policy = config.trainer, MegatronPolicy(config, world, model_dir)
    return MegatronTrainer(
        policy,
        make_optimizer(policy.model, trainer),
        algo=config.algo,
        trainer=trainer,
        num_steps=config.steps,
        seed=config.seed,
    )


class MegatronTrainer(Stepper):
    """The trainer of a `MegatronPolicy`."""

    policy: Any

    def take_step(self) -> float:
        from megatron.core.distributed import finalize_model_grads

        finalize_model_grads([self.policy.copies])
        own = list(self.policy.own.values())
        for p in own:
            p.grad = p.main_grad
        norm = self._norm(own)
        if not math.isfinite(norm):
            raise TrainerError(f"gradient norm is {norm}: the weights were left as they were")
        if (share := self._trainer.max_grad_norm / (norm + 1e-6)) < 1:
            for p in own:
                p.grad.mul_(share)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.policy.copies.zero_grad_buffer()
        return norm

    def _norm(self, own: list[Any]) -> float:
        """Return the norm of all gradients; what ranks of a unit have in common counts once."""
        first = self.policy.layout.rank == 0
        mine = [p.grad for p in own if first or getattr(p, "tensor_model_parallel", False)]
        total = torch.zeros((), dtype=torch.float64, device=self.policy.world.device)
        for grad in mine:
            total += grad.double().square().sum()
        if self.policy.world.unit > 1:
            from megatron.core import parallel_state

            dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
        return float(total.sqrt())

    def checkpoints(self, folder: Path, **options: Any) -> Checkpoints:
        return _Checkpoints(folder, self.policy, self.optimizer, **options)

    def restore(self, checkpoint: Path) -> Manifest:
        manifest, policy = read_manifest(checkpoint), self.policy
        try:
            state = torch.load(checkpoint / _FILE, map_location="cpu", weights_only=True)
            policy.take(policy.own, state["model"])
            for name in _MEANS:
                policy.take(_states(self.optimizer, policy.own, name), state[name])
            for its in self.optimizer.state.values():
                its["step"].fill_(state["step"])
            torch.set_rng_state(state["random"])
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            raise TrainerError(f"cannot load checkpoint {checkpoint}: {error}") from error
        return manifest


def _states(
    optimizer: torch.optim.Optimizer, own: Mapping[str, Any], name: str
) -> dict[str, Tensor]:
    """Return a state of the optimizer for each parameter, by its name."""
    return {key: optimizer.state[p][name] for key, p in own.items()}


@dataclass
class _Checkpoints(Checkpoints):
    """The writer of checkpoints in one file, which rank 0 writes."""

    def write(self, part: Path) -> Future[Any]:
        policy: Any = self.policy
        first = policy.world.rank == 0
        kinds = {"model": policy.own}
        kinds |= {name: _states(self.optimizer, policy.own, name) for name in _MEANS}
        state: dict[str, Any] = {"random": torch.get_rng_state()}
        for kind, values in kinds.items():
            found = [*policy.whole(values)]
            state[kind] = {n: it.cpu() for its in found for n, it in its.items()} if first else {}
        state["step"] = max(float(its["step"]) for its in self.optimizer.state.values())
        if first:
            torch.save(state, part / _FILE)
        done: Future[Any] = Future()
        done.set_result(None)
        return done
