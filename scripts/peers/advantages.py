"""The rows of rewards, advantages and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nemo
import numpy as np
import torch
from arl_objectives.keys.kl import KlConfig
from arl_objectives.keys.rewards import RewardConfig
from arl_objectives.kl import kl_to_come
from arl_objectives.rewards import shaped_rewards
from arl_objectives.values import adaptive_lambdas, generalized_advantages
from cases import Case, Settings, take
from torch import Tensor

from agentgym_rl.algo import episode_advantages, moments_of
from agentgym_rl.algo.advantages import whitened
from agentgym_rl.config import AlgoConfig, StdConfig, WhitenConfig

Values = Callable[[Case], tuple[Tensor, Tensor]]
VERL = WhitenConfig(over="tokens", eps=1e-8, eps_in="variance")
NEMO = WhitenConfig(over="tokens", unbiased=False, eps=1e-8, eps_in="floor")


def advantage_rows(peers: Path) -> Iterator[tuple[str, str, Values]]:
    yield from _areal(peers / "areal")
    yield from _nemo()
    yield from _verl(peers / "verl")
    yield from _trl()


def of_episodes(c: Case, baseline: Any, scale: Any, **std: Any) -> Tensor:
    return episode_advantages(
        c.rewards,
        c.groups,
        baseline=baseline,
        scale=scale,
        std=StdConfig(**std),
        lengths=c.lengths.tolist(),
    )


def over_tokens(c: Case, advantages: Tensor, whiten: WhitenConfig) -> Tensor:
    """Return [B, T] advantages, of episodes or tokens, whitened over the trained tokens."""
    all_of = advantages if advantages.ndim == 2 else c.tokens(advantages)
    found = torch.zeros_like(c.x)
    found[c.flat] = whitened(all_of[c.flat], moments_of(all_of[c.flat]), whiten)
    return found


def gae_of(c: Case, rewards: Tensor, discount: float, share: Any) -> tuple[Tensor, Tensor]:
    """Return our advantages and returns, [B, T]; the reward comes with a row's last token."""
    flat, rows = c.flat, torch.arange(len(c.x))[:, None].expand_as(c.x)[c.flat]
    last = c.mask.flip(1).cumsum(1).flip(1) * c.mask == 1
    paid = (last * rewards[:, None])[flat]
    if isinstance(share, str):
        share = adaptive_lambdas(rows, float(share))
    got = generalized_advantages(paid, c.values[0][flat], rows, discount=discount, gae_lambda=share)
    found = [torch.zeros_like(c.x), torch.zeros_like(c.x)]
    for into, of in zip(found, got, strict=True):
        into[flat] = of
    return found[0], found[1]


def _areal(areal: Path) -> Iterator[tuple[str, str, Values]]:
    known = {"dist": Settings(is_initialized=lambda: False)}
    norm = take(areal / "utils/data.py", "Normalization", known=known).Normalization
    shape = take(areal / "utils/functional/functional.py", "reward_overlong_penalty")

    def row(name: str, ours: Callable[[Case], Tensor], tokens: bool = False, **keys: Any) -> Any:
        config = Settings(**{"mean_level": "batch", "std_level": "batch", "eps": 1e-5, **keys})
        config.group_size, config.std_unbiased = 4, keys.get("std_unbiased", True)
        its = norm(config)

        def values(c: Case) -> tuple[Tensor, Tensor]:
            if tokens:
                return ours(c), its(c.tokens(c.advantages), c.mask).double()
            return ours(c), its(c.rewards).double()

        return f"norm {name}", "AReaL", values

    def ours(baseline: str, scale: str, **std: Any) -> Callable[[Case], Tensor]:
        return lambda c: of_episodes(c, baseline, scale, eps=1e-5, **std)

    group, no_std = {"mean_level": "group"}, {"std_level": None}
    centred = {"of": "centred"}
    yield row("group/group unbiased", ours("mean", "group_std"), **group, std_level="group")
    yield row(
        "group/group biased",
        ours("mean", "group_std", unbiased=False),
        **group,
        std_level="group",
        std_unbiased=False,
    )
    yield row(
        "group mean, no std (Dr.GRPO)", lambda c: of_episodes(c, "mean", "none"), **group, **no_std
    )
    yield row(
        "group LOO mean, no std (RLOO)",
        lambda c: of_episodes(c, "leave_one_out", "none"),
        **group,
        **no_std,
        mean_leave1out=True,
    )
    yield row(
        "LOO mean + group std",
        ours("leave_one_out", "group_std", **centred),
        **group,
        std_level="group",
        mean_leave1out=True,
    )
    yield row("group mean + batch std", ours("mean", "batch_std", **centred), **group)
    yield row("batch/batch unbiased", ours("batch_mean", "batch_std"))
    yield row(
        "batch/batch biased", ours("batch_mean", "batch_std", unbiased=False), std_unbiased=False
    )
    yield row("no mean + batch std", ours("none", "batch_std", **centred), mean_level=None)
    for unbiased in (True, False):
        whiten = WhitenConfig(over="tokens", eps=1e-5, unbiased=unbiased)
        name = f"adv_norm batch over tokens, {'un' * unbiased}biased"
        yield row(
            name, lambda c, w=whiten: over_tokens(c, c.advantages, w), True, std_unbiased=unbiased
        )

    def shaped(c: Case) -> tuple[Tensor, Tensor]:
        reward = {"overlong_penalty": 0.7, "overlong_limit": 6, "overlong_buffer": 3}
        config = AlgoConfig(reward=RewardConfig(**reward, overlong_capped=False))
        data = {"rewards": c.rewards.clone(), "input_ids": c.x, "loss_mask": c.mask}
        its = shape.reward_overlong_penalty(data, 3, 0.7, 6)["rewards"]
        return shaped_rewards(c.rewards.tolist(), c.lengths.tolist(), config), its

    yield "overlong penalty, all lengths", "AReaL", shaped
    yield "GAE, truncated rows bootstrapped", "AReaL", _bootstrapped


def _bootstrapped(c: Case) -> tuple[Tensor, Tensor]:
    """Return our advantages of truncated rows with γ·V of a state after the row in their reward,
    and those of the definition with V as the next value of the last token."""
    after = c.values[1, :, 0] * c.truncated
    mine, _ = gae_of(c, c.rewards + 0.9 * after, 0.9, 0.8)
    found = torch.zeros_like(c.x)
    for row in range(len(c.x)):
        next_value, next_advantage, reward = float(after[row]), 0.0, float(c.rewards[row])
        for t in reversed(torch.nonzero(c.mask[row])[:, 0].tolist()):
            value = float(c.values[0, row, t])
            next_advantage = reward + 0.9 * next_value - value + 0.9 * 0.8 * next_advantage
            found[row, t], next_value, reward = next_advantage, value, 0.0
    return mine, found


def _nemo() -> Iterator[tuple[str, str, Values]]:
    for name, baseline, scale, one_out, normalize in (
        (
            "GRPO adv DEFAULT (leave-one-out baseline AND std)",
            "leave_one_out",
            "leave_one_out_std",
            True,
            True,
        ),
        ("GRPO adv leave-one-out=False normalize", "mean", "group_std", False, True),
        ("GRPO adv leave-one-out=True no normalize (RLOO)", "leave_one_out", "none", True, False),
        ("GRPO adv leave-one-out=False no normalize", "mean", "none", False, False),
    ):
        yield (
            name,
            "NeMo RL",
            lambda c, b=baseline, s=scale, o=one_out, n=normalize: (
                of_episodes(c, b, s),
                nemo.per_prompt(c.rewards, c.groups, leave_one_out=o, normalize=n),
            ),
        )
    for minus, baseline in ((False, "none"), (True, "mean")):

        def plus(c: Case, minus: bool = minus, baseline: str = baseline) -> tuple[Tensor, Tensor]:
            its = c.rewards
            if minus:
                its = nemo.per_prompt(its, c.groups, leave_one_out=False, normalize=False)
            mine = over_tokens(c, of_episodes(c, baseline, "none"), NEMO)
            return mine, nemo.whitened(c.tokens(its), c.mask)

        yield f"reinforce++ minus_baseline={minus}, token whitening", "NeMo RL", plus

    def with_kl(c: Case) -> tuple[Tensor, Tensor]:
        kl = KlConfig(coef=0.1, reference="initial", placement="token", clamp=10, clamp_ratio=20)
        cost = torch.zeros_like(c.x)
        rows = torch.arange(len(c.x))[:, None].expand_as(c.x)[c.flat]
        cost[c.flat] = kl_to_come(c.p[c.flat], c.ref[c.flat], rows, kl)
        log = (c.ref - c.p).clamp(-20, 20)
        its = c.tokens(c.rewards) - 0.1 * (log.exp() - 1 - log).clamp(-10, 10)
        return over_tokens(c, c.tokens(c.rewards) + cost, NEMO), nemo.whitened(its, c.mask)

    yield "reinforce++ with KL in the reward of each token", "NeMo RL", with_kl

    def gdpo(c: Case) -> tuple[Tensor, Tensor]:
        found = sum(
            weight * of_episodes(replace(c, rewards=part), "leave_one_out", "leave_one_out_std")
            for weight, part in zip((1.0, 0.5), c.parts, strict=True)
        )
        whiten = WhitenConfig(over="episodes", eps=0)
        return whitened(found, moments_of(found), whiten), nemo.gdpo(c, [1.0, 0.5])

    yield "GDPO, two parts", "NeMo RL", gdpo
    for name, capped, longest in (("all lengths", False, 99), ("len<=max", True, 6)):

        def shaped(c: Case, capped: bool = capped, longest: int = longest) -> tuple[Tensor, Tensor]:
            reward = {"overlong_penalty": 0.7, "overlong_limit": 6, "overlong_buffer": 3}
            config = AlgoConfig(reward=RewardConfig(**reward, overlong_capped=capped))
            lengths = c.lengths.clamp(max=longest)
            its = c.rewards + nemo.overlong(lengths, limit=6, buffer=3, penalty=0.7)
            return shaped_rewards(c.rewards.tolist(), lengths.tolist(), config), its

        yield f"DAPO overlong shaping, {name}", "NeMo RL", shaped

    def stopped(c: Case) -> tuple[Tensor, Tensor]:
        config = AlgoConfig(reward=RewardConfig(truncated_factor=0.3))
        mine = shaped_rewards(c.rewards.tolist(), [], config, truncated=c.truncated.tolist())
        return mine, torch.where(c.truncated, 0.3 * c.rewards, c.rewards)

    yield "stop-properly penalty .3", "NeMo RL", stopped
    for index, part in enumerate(("advantages", "returns")):
        yield (
            f"GAE {part}",
            "NeMo RL",
            lambda c, i=index: (
                gae_of(c, c.rewards, 0.9, 0.8)[i],
                nemo.gae(c, c.rewards, discount=0.9, share=torch.full((len(c.x),), 0.8))[i]
                * c.mask,
            ),
        )

    def adaptive(c: Case) -> tuple[Tensor, Tensor]:
        share = (1 - 1 / (0.5 * c.lengths.double()).clamp(min=1)).clamp(0, 1)
        its, _ = nemo.gae(c, c.rewards, discount=1.0, share=share)
        return gae_of(c, c.rewards, 1.0, "0.5")[0], its

    yield "VAPO length-adaptive lambda .5", "NeMo RL", adaptive


def _verl(verl: Path) -> Iterator[tuple[str, str, Values]]:
    names = ("masked_sum", "masked_mean", "masked_var", "masked_whiten")
    tools = take(verl / "utils/torch_functional.py", *names)
    kinds = ("grpo", "reinforce_plus_plus_baseline", "rloo", "opo", "reinforce_plus_plus", "gpg")
    core = take(
        verl / "trainer/ppo/core_algos.py",
        *(f"compute_{kind}_outcome_advantage" for kind in (*kinds, "gdpo")),
        "compute_gae_advantage_return",
        known={"verl_F": tools},
    )

    def last(c: Case, rewards: Tensor) -> Tensor:
        paid = torch.zeros_like(c.x)
        paid[:, 0] = rewards  # where in the row does not matter to their sum
        return paid

    def row(name: str, kind: str, ours: Callable[[Case], Tensor], **keys: Any) -> Any:
        its = getattr(core, f"compute_{kind}_outcome_advantage")

        def values(c: Case) -> tuple[Tensor, Tensor]:
            index = np.asarray(c.groups)
            found = its(last(c, c.rewards), c.mask, index=index, **keys)[0]
            return c.tokens(mine) if (mine := ours(c)).ndim == 1 else mine, found * c.mask

        return name, "verl", values

    yield row("grpo outcome adv", "grpo", lambda c: of_episodes(c, "mean", "group_std"))
    yield row(
        "Dr.GRPO adv (no std)",
        "grpo",
        lambda c: of_episodes(c, "mean", "none"),
        norm_adv_by_std_in_grpo=False,
    )
    yield row("rloo adv", "rloo", lambda c: of_episodes(c, "leave_one_out", "none"))
    yield row("opo adv", "opo", lambda c: of_episodes(c, "length_weighted", "none"))
    yield row("gpg adv", "gpg", lambda c: of_episodes(c, "mean", "nonzero_share"))
    yield row(
        "reinforce++-baseline adv",
        "reinforce_plus_plus_baseline",
        lambda c: over_tokens(c, of_episodes(c, "mean", "none"), VERL),
    )
    plus = core.compute_reinforce_plus_plus_outcome_advantage

    def reinforce(c: Case) -> tuple[Tensor, Tensor]:
        paid = (c.mask.flip(1).cumsum(1).flip(1) * c.mask == 1) * c.rewards[:, None]
        return over_tokens(c, c.rewards, VERL), plus(paid, c.mask, config=Settings(gamma=1.0))[0]

    yield "reinforce++ adv", "verl", reinforce

    def gdpo(c: Case) -> tuple[Tensor, Tensor]:
        found = sum(
            weight * of_episodes(replace(c, rewards=part), "mean", "group_std")
            for weight, part in zip((1.0, 0.5), c.parts.float().double(), strict=True)
        )
        c = replace(c, mask=(torch.arange(c.x.shape[1])[None] < c.lengths[:, None]).double())
        batch = {
            "prompts": torch.zeros(len(c.x), 0),
            "attention_mask": c.mask.long(),
        }
        config = Settings(gdpo_reward_keys=["a", "b"], gdpo_reward_weights=[1.0, 0.5])
        scores = dict(zip("ab", c.parts.numpy(), strict=True))
        its = core.compute_gdpo_outcome_advantage(
            torch.zeros_like(c.x),
            c.mask,
            np.asarray(c.groups),
            config=config,
            non_tensor_batch=scores,
            batch=batch,
        )[0]
        return over_tokens(c, found, VERL), its

    yield "gdpo adv, two parts", "verl", gdpo
    for index, part in enumerate(("whitened advantages", "returns")):

        def gae(c: Case, index: int = index) -> tuple[Tensor, Tensor]:
            paid = (c.mask.flip(1).cumsum(1).flip(1) * c.mask == 1) * c.rewards[:, None]
            its = core.compute_gae_advantage_return(paid, c.values[0], c.mask, 0.9, 0.8)[index]
            mine = gae_of(c, c.rewards, 0.9, 0.8)
            return (mine[1] if index else over_tokens(c, mine[0], VERL)), its * c.mask

        yield f"GAE {part}", "verl", gae


def _trl() -> Iterator[tuple[str, str, Values]]:
    """Yield rows of TRL's advantages, whose formulas are inside of a long method: written anew."""

    def its(c: Case, scale: str) -> Tensor:
        groups = c.rewards.view(-1, 4)
        found = c.rewards - groups.mean(1).repeat_interleave(4)
        std = groups.std(1).repeat_interleave(4) if scale == "group" else c.rewards.std()
        return found if scale == "none" else found / (std + 1e-4)

    for scale, ours in (("group", "group_std"), ("batch", "batch_std"), ("none", "none")):
        std = {} if scale == "none" else {"eps": 1e-4}
        yield (
            f"scale_rewards {scale}",
            "TRL",
            lambda c, s=scale, o=ours, std=std: (
                of_episodes(c, "mean", o, **std),
                its(c, s),
            ),
        )
