"""Random batches, our objective on them, and functions of other systems, taken out of their files.

Legend: [B, T] rows with padding, one for each episode; `mask` is 1 on trained tokens.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from arl_objectives.covariance import covariances, held_objective
from arl_objectives.kl import kl_loss
from arl_objectives.moment_mask import largest_moment
from torch import Tensor

from agentgym_rl.algo import (
    LossTokens,
    aggregation_weights,
    behavior_weights,
    policy_loss,
)
from agentgym_rl.config import AlgoConfig


@dataclass(frozen=True)
class Case:
    """A random batch in float64."""

    x: Tensor
    """The log-probs of the policy that is updated, [B, T]; then proximal, behavior, reference."""
    p: Tensor
    b: Tensor
    ref: Tensor
    mask: Tensor
    advantages: Tensor
    """One for each episode, [B]."""
    rewards: Tensor
    parts: Tensor
    """Two more rewards, [2, B]."""
    groups: list[int]
    lengths: Tensor
    values: Tensor
    """The values of a critic, old, new, [2, B, T]."""
    truncated: Tensor

    @property
    def flat(self) -> Tensor:
        return self.mask.bool()

    def tokens(self, of_episodes: Tensor) -> Tensor:
        """Return [B, T] the value of each episode, on its trained tokens."""
        return of_episodes[:, None] * self.mask


def random_case(
    seed: int, *, binary: bool = False, group_size: int = 4, gaps: bool = False
) -> Case:
    """Return batch number `seed`: rewards of 0 and 1 only if `binary`, tokens that do not train
    between others if there are `gaps`."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.from_numpy(rng.normal(0, scale, shape))

    rows, width = 3 * group_size, int(rng.integers(3, 11))
    lengths = torch.from_numpy(rng.integers(1, width + 1, rows))
    mask = (torch.arange(width)[None] < lengths[:, None]).double()
    if gaps:
        mask[:, 1:] *= torch.from_numpy(rng.integers(0, 2, (rows, width - 1)))
    x = -normal(rows, width).abs() * 1.5
    far = torch.from_numpy(rng.random((rows, width)) < 0.05).double()
    p = x + normal(rows, width, scale=0.3)
    rewards = torch.from_numpy(rng.integers(0, 2, rows)).double() if binary else normal(rows)
    return Case(
        x=x,
        p=p,
        b=p + normal(rows, width, scale=0.3),
        ref=x + normal(rows, width, scale=0.7) * (1 + 6 * far),
        mask=mask,
        advantages=normal(rows),
        rewards=rewards,
        parts=normal(2, rows),
        groups=[index // group_size for index in range(rows)],
        lengths=mask.sum(1).long(),
        values=normal(2, rows, width),
        truncated=torch.from_numpy(rng.integers(0, 2, rows)).bool(),
    )


def fresh(case: Case) -> Case:
    """Return the case before the first optimizer step: the policy is the proximal one."""
    return replace(case, x=case.p.clone())


def ours(case: Case, algo: AlgoConfig, **changes: Any) -> tuple[Tensor, Tensor]:
    """Return our loss of the batch, and its gradient with respect to x, [B, T]."""
    case = replace(case, **changes)
    x = case.x.clone().requires_grad_()
    kept = case.flat
    rows = torch.arange(len(x))[:, None].expand_as(x)[kept]
    p, b, advantages = case.p[kept], case.b[kept], case.tokens(case.advantages)[kept]
    correction = algo.behavior_correction
    largest = math.inf
    if correction.type == "moment_mask":
        largest = largest_moment((p - b) ** 2, correction.limit)
    weight = behavior_weights(p, b, rows, correction, of_batch=largest).weight
    held = None
    if algo.covariance.rule != "none":
        found = covariances(advantages, p, (float(advantages.mean()), float(p.mean())))
        if algo.covariance.rule == "clip":  # a share of 1 drops all candidates: no lots are drawn
            inside = (found > algo.covariance.low) & (found < algo.covariance.high)
            weight = weight.masked_fill(inside, 0.0)
        else:
            number = max(1, int(algo.covariance.share * len(found)))
            held = found >= found.topk(number).values[-1]
    tokens = LossTokens(
        logprobs=x[kept],
        anchor=b if algo.naive else p,
        behavior_logprobs=b,
        behavior_weight=torch.ones_like(weight) if algo.naive else weight,
        advantages=advantages,
        weights=aggregation_weights(
            rows,
            case.lengths,
            aggregation=algo.aggregation,
            num_trained_tokens=len(rows),
            num_episodes=int((case.lengths > 0).sum()),
            max_tokens=algo.max_tokens,
        ),
        rows=rows,
        turns=rows,
    )
    added = [] if held is None else [held_objective(tokens, held, algo.covariance.coef)]
    loss = policy_loss(tokens, algo, added).loss
    if algo.kl.coef:
        loss = loss + kl_loss(tokens.logprobs, case.ref[kept], b, tokens.weights, algo.kl)
    if algo.positive_nll:
        good = (case.rewards > 0)[rows].double()
        nll = -(good * tokens.logprobs).sum() / good.sum().clamp(min=1)
        loss = loss + algo.positive_nll * nll
    return loss.detach(), torch.autograd.grad(loss, x)[0]


def theirs(case: Case, loss_of: Any) -> tuple[Tensor, Tensor]:
    """Return another system's loss, a function of x, and its gradient."""
    x = case.x.clone().requires_grad_()
    loss = loss_of(x)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


class Settings(SimpleNamespace):
    """The stand-in for another system's configuration: keys as attributes, None for others."""

    def get(self, name: str, default: Any = None) -> Any:
        return vars(self).get(name, default)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def take(file: Path, *names: str, until: str = "", known: Mapping[str, Any] | None = None) -> Any:
    """Return the named functions and classes of a file, or `Class.method`, without its imports.

    Decorators are left out. With `until`, a function ends before the first statement with this
    text, and returns `loss`.

    Raises:
        LookupError: the file has no such definition.
    """
    tree = ast.parse(file.read_text())
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{m.name}": m for m in node.body if isinstance(m, ast.FunctionDef)
            }
    if missing := set(names) - found.keys():
        raise LookupError(f"{file} has no {', '.join(sorted(missing))}")
    body = [_plain(found[name], until) for name in names]
    space: dict[str, Any] = {
        **{"torch": torch, "np": np, "math": math, "Any": Any, "defaultdict": defaultdict},
        **{"Optional": Any, "ActorConfig": Settings, "AlgoConfig": type("None_", (), {})},
        **(known or {}),
    }
    module = ast.Module(body=body, type_ignores=[])
    future = __import__("__future__").annotations.compiler_flag
    exec(compile(ast.fix_missing_locations(module), str(file), "exec", flags=future), space)
    return SimpleNamespace(**space)


def _plain(node: Any, until: str) -> Any:
    node.decorator_list = []
    if isinstance(node, ast.ClassDef):
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                names = [d for d in part.decorator_list if isinstance(d, ast.Name)]
                part.decorator_list = [d for d in names if d.id == "staticmethod"]
    elif until:
        ends = [i for i, part in enumerate(node.body) if until in ast.unparse(part)]
        node.body[ends[0] :] = ast.parse("return loss").body
    return node


Values = Callable[[Case], tuple[Tensor, Tensor]]
Pair = Callable[[Case], tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]
NONE, TOKEN = {"type": "none"}, {"type": "clamp", "cap": 1e30}


def algo(loss: str = "ppo", correction: Any = None, **keys: Any) -> AlgoConfig:
    """Return an objective; the correction is by default the plain weight exp(p − b)."""
    if not keys.get("naive"):
        keys["behavior_correction"] = correction or TOKEN
    if loss == "ppo":
        keys.setdefault("behavior_clip", 1.0)  # a bound of ours, which no other system has
    return AlgoConfig(loss=loss, **keys)


def both(name: str, system: str, pair: Pair) -> Iterator[tuple[str, str, Values]]:
    """Yield the rows of the loss and of its gradient."""
    for index, part in enumerate(("loss", "grad")):
        yield f"{name} [{part}]", system, lambda c, i=index: tuple(of[i] for of in pair(c))
