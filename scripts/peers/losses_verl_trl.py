"""The rows of losses and gradients: verl and TRL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nemo
import torch
from arl_objectives.keys.kl import KlConfig
from arl_objectives.kl import kl_estimates
from arl_objectives.values import value_loss
from cases import NONE, Case, Settings, Values, algo, both, fresh, ours, take, theirs
from torch import Tensor

from agentgym_rl.config import AlgoConfig


# ------------------------------------------------------------------ verl
def verl_rows(verl: Path) -> Iterator[tuple[str, str, Values]]:
    F = take(verl / "utils/torch_functional.py", "masked_sum", "masked_mean", "clip_by_value")
    kinds = (
        "vanilla",
        "gspo",
        "sapo",
        "gpg",
        "clip_cov",
        "kl_cov",
        "geo_mean",
        "dro",
        "cispo",
        "dppo_tv",
    )
    its = take(
        verl / "trainer/ppo/core_algos.py",
        *("agg_loss", "compute_value_loss", "kl_penalty", "kl_penalty_forward"),
        *(f"compute_policy_loss_{kind}" for kind in kinds),
        known={"verl_F": F},
    )
    correct = take(
        verl / "trainer/ppo/rollout_corr_helper.py",
        *("_parse_rollout_is_threshold", "compute_rollout_correction_weights"),
        known={"verl_F": F, "SAFETY_BOUND": 20.0, "compute_is_metrics": lambda **_: {}},
    )

    def row(
        name: str,
        recipe: AlgoConfig,
        kind: str,
        *,
        mode: str = "token-mean",
        weights: Any = "plain",
        first: bool = False,
        **keys: Any,
    ) -> Any:
        policy_loss = Settings(
            **{k: keys.pop(k) for k in [*keys] if "cov" in k or k in ("dro_beta", "ppo_kl_coef")}
        )
        config = Settings(clip_ratio=0.2, global_batch_info={}, policy_loss=policy_loss, **keys)
        loss_of = getattr(its, f"compute_policy_loss_{kind}")

        def pair(c: Case) -> Any:
            c = fresh(c) if first else c
            by = (c.p - c.b).exp() if weights == "plain" else weights and weights(c)

            def loss(x):
                return loss_of(c.p, x, c.tokens(c.advantages), c.mask, mode, config, by)[0]

            return ours(c, recipe), theirs(c, loss)

        return both(name, "verl", pair)

    def measured(level: str, threshold: Any) -> Callable[[Case], Tensor]:
        return lambda c: correct.compute_rollout_correction_weights(
            c.p - c.b, c.mask, level, threshold
        )[0]

    dual, cispo = {"dual_clip": 3}, {"clip_low": 1, "clip_high": 4}
    yield from row("vanilla c=3 token-mean, w=exp(p-b)", algo(**dual), "vanilla")
    yield from row(
        "vanilla seq-mean-token-mean",
        algo(aggregation="sequence", **dual),
        "vanilla",
        mode="seq-mean-token-mean",
    )
    yield from row(
        "vanilla seq-mean-token-sum (constant max_tokens=1)",
        algo(aggregation="constant", max_tokens=1, **dual),
        "vanilla",
        mode="seq-mean-token-sum",
    )
    yield from row(
        "vanilla without rollout correction", algo(correction=NONE, **dual), "vanilla", weights=None
    )
    yield from row(
        "rollout_is token, TIS 2",
        algo(correction={"type": "clamp", "cap": 2}, **dual),
        "vanilla",
        weights=measured("token", 2.0),
    )
    yield from row(
        "rollout_is token, IcePop .5..2",
        algo(correction={"type": "mask", "low": 0.5, "high": 2}, **dual),
        "vanilla",
        weights=measured("token", "0.5_2.0"),
    )
    yield from row(
        "rollout_is sequence, TIS 2",
        algo(correction={"type": "clamp", "weight": "row_product", "cap": 2}, **dual),
        "vanilla",
        weights=measured("sequence", 2.0),
    )
    yield from row(
        "rollout_is sequence, IcePop .5..2",
        algo(
            correction={
                "type": "sequence_mask",
                "reduce": "sum",
                "weight": "row_product",
                "low": 0.5,
                "high": 2,
            },
            **dual,
        ),
        "vanilla",
        weights=measured("sequence", "0.5_2.0"),
    )
    yield from row("gspo", algo("gspo", ratio="row_token"), "gspo")
    yield from row(
        "gspo seq-mean-token-mean",
        algo("gspo", ratio="row_token", aggregation="sequence"),
        "gspo",
        mode="seq-mean-token-mean",
    )
    yield from row("sapo", algo("sapo", aggregation="sequence"), "sapo", tau_pos=1.0, tau_neg=1.05)
    yield from _gpg(its)
    yield from row(
        "cispo 1/4", algo("cispo", **cispo), "cispo", clip_ratio_low=1, clip_ratio_high=4
    )
    yield from row(
        "geo_mean (GMPO) .4/.4",
        algo("gmpo", NONE, clip_low=0.4, clip_high=0.4, aggregation="sequence"),
        "geo_mean",
        weights=None,
        clip_ratio_low=0.4,
        clip_ratio_high=0.4,
    )
    yield from row("dro beta .1", algo("dro", dro_beta=0.1), "dro", dro_beta=0.1)
    yield from row(
        "clip_cov, all candidates, first step",
        algo(covariance={"rule": "clip", "share": 1.0, "low": 0.1, "high": 5}),
        "clip_cov",
        first=True,
        clip_cov_ratio=1.0,
        clip_cov_lb=0.1,
        clip_cov_ub=5.0,
    )
    yield from row(
        "kl_cov .1, first step",
        algo("ppo", clip_low=1, clip_high=1e9, covariance={"rule": "kl", "share": 0.1}),
        "kl_cov",
        first=True,
        kl_cov_ratio=0.1,
        ppo_kl_coef=1.0,
    )

    def norm(c: Case) -> Any:
        width = c.x.shape[1]
        config = Settings(clip_ratio=0.2, global_batch_info={"loss_scale_factor": width})

        def loss(x):
            return its.compute_policy_loss_vanilla(
                c.p, x, c.tokens(c.advantages), c.mask, "seq-mean-token-sum-norm", config
            )[0]

        return ours(
            c, algo(correction=NONE, aggregation="constant", max_tokens=width, **dual)
        ), theirs(c, loss)

    yield from both("vanilla seq-mean-token-sum-norm (constant x B)", "verl", norm)
    for kind, keys in {
        "k1": {},
        "k2": {},
        "k3": {"clamp": 10, "clamp_ratio": 20},
        "abs": {},
    }.items():
        yield (
            f"kl {kind} estimate",
            "verl",
            lambda c, k=kind, more=keys: (
                kl_estimates(c.x, c.ref, KlConfig(estimator=k, **more)),
                its.kl_penalty(c.x, c.ref, k),
            ),
        )
        kl = KlConfig(coef=1, reference="initial", estimator=kind, gradient="k2", **keys)
        nothing = algo(correction=NONE, kl=kl)

        def straight(c: Case, kind=kind, recipe=nothing) -> Any:
            c = replace(c, advantages=torch.zeros_like(c.advantages))

            def loss(x):
                return nemo.mean(its.kl_penalty(x, c.ref, f"{kind}+"), c.mask)

            return ours(c, recipe), theirs(c, loss)

        if not keys:  # with the bounds of k3, the gradients of k2 differ
            yield from both(f"kl {kind}+ (gradient of k2)", "verl", straight)

    def values(c: Case) -> tuple[Any, Any]:
        old, new = c.values
        returns, flat = c.tokens(c.rewards), c.flat
        weights = torch.full((int(flat.sum()),), 1 / int(flat.sum()), dtype=torch.float64)
        mine = value_loss(new[flat], old[flat], returns[flat], weights, clip=0.2)
        his = its.compute_value_loss(new, returns, old, c.mask, 0.2)
        return (mine.loss, his[0]), (mine.clipped / flat.sum(), his[1])

    yield "value loss (clip .2)", "verl", lambda c: values(c)[0]
    yield "value clipfrac", "verl", lambda c: values(c)[1]


def _gpg(its: Any) -> Iterator[tuple[str, str, Values]]:
    config = Settings(global_batch_info={})

    def pair(c: Case) -> Any:
        by = (c.p - c.b).exp()

        def loss(x):
            return its.compute_policy_loss_gpg(
                c.p, x, c.tokens(c.advantages), c.mask, "token-mean", config, by
            )[0]

        return ours(c, algo("reinforce")), theirs(c, loss)

    return both("gpg", "verl", pair)


# ------------------------------------------------------------------ TRL
def trl_rows(trl: Path) -> Iterator[tuple[str, str, Values]]:
    file = trl / "trainer/grpo_trainer.py"
    compute = take(file, "GRPOTrainer._compute_loss", until="_entropy_bonus_enabled")._compute_loss
    gamma = torch.no_grad()(take(file, "GRPOTrainer.get_gamma_weights").get_gamma_weights)

    def row(
        name: str,
        recipe: AlgoConfig,
        loss_type: str,
        *,
        correct: Any = None,
        kl: float = 0.0,
        **keys: Any,
    ) -> Any:
        more = {k: keys.pop(k) for k in [*keys] if k in ("delta", "use_bias_correction_kl")}

        def loss(c: Case, x: Tensor) -> Tensor:
            settings = Settings(
                steps_per_generation=1,
                sapo_temperature_pos=1.0,
                sapo_temperature_neg=1.05,
                vespo_k_pos=2.0,
                vespo_lambda_pos=3.0,
                vespo_k_neg=3.0,
                vespo_lambda_neg=2.0,
                **more,
            )
            weights = correct and correct((c.p - c.b) * c.mask)
            me = Settings(
                args=settings,
                loss_type=loss_type,
                beta=kl,
                top_entropy_quantile=1.0,
                importance_sampling_level=keys.get("level", "token"),
                max_completion_length=10,
                epsilon_low=keys.get("low", 0.2),
                epsilon_high=keys.get("high", 0.2),
                use_vllm=correct is not None,
                vllm_importance_sampling_correction=True,
                model=Settings(training=True),
                current_gradient_accumulation_steps=1.0,
                accelerator=Settings(num_processes=1),
                get_gamma_weights=gamma,
                _get_per_token_logps_and_entropies=lambda *a, **k: (x, torch.zeros_like(x), None),
            )
            inputs = {
                "prompt_ids": c.x[:, :1],
                "prompt_mask": c.mask[:, :1],
                "completion_ids": c.x,
                "completion_mask": c.mask,
                "advantages": c.advantages,
                "ref_per_token_logps": c.ref,
                "old_per_token_logps": c.p,
                "num_items_in_batch": c.mask.sum(),
            }
            if weights is not None:
                inputs["importance_sampling_ratio"] = weights
            return compute(me, me.model, inputs)

        def pair(c: Case) -> Any:
            c = _every_row(c)
            return ours(c, recipe), theirs(c, lambda x: loss(c, x))

        return both(name, "TRL", pair)

    penalty = KlConfig(coef=0.04, reference="initial")
    yield from row("grpo", algo(correction=NONE, aggregation="sequence"), "grpo")
    yield from row("bnpo", algo(correction=NONE), "bnpo")
    yield from row("dapo .2/.28", algo(correction=NONE, clip_high=0.28), "dapo", high=0.28)
    yield from row(
        "dapo + delta 3 (two-sided)", algo(correction=NONE, dual_clip=3), "dapo", delta=3.0
    )
    yield from row(
        "dr_grpo maxlen 10", algo(correction=NONE, aggregation="constant", max_tokens=10), "dr_grpo"
    )
    yield from row("cispo eps_max 5", algo("cispo", NONE, clip_low=1, clip_high=4), "cispo", high=5)
    yield from row(
        "gspo (sequence level, grpo)",
        algo("gspo", NONE, aggregation="sequence"),
        "grpo",
        level="sequence",
    )
    yield from row(
        "luspo", algo("gspo", NONE, aggregation="constant", max_tokens=1), "luspo", level="sequence"
    )
    yield from row("sapo (w=1)", algo("sapo", NONE, aggregation="sequence"), "sapo")
    yield from row("vespo", algo("vespo", NONE), "vespo")
    yield from row("KL beta .04 k3", algo(correction=NONE, kl=penalty), "dapo", kl=0.04)
    yield from row(
        "token_truncate 2",
        algo(correction={"type": "clamp", "cap": 2}),
        "dapo",
        correct=lambda d: d.exp().clamp(max=2),
    )
    yield from row(
        "token_mask .5..2",
        algo(correction={"type": "mask", "low": 0.5, "high": 2}),
        "dapo",
        correct=lambda d: _inside(d.exp()),
    )
    yield from row(
        "sequence_truncate 2",
        algo(correction={"type": "clamp", "weight": "row_product", "cap": 2}),
        "dapo",
        correct=lambda d: d.sum(1, keepdim=True).exp().clamp(max=2),
    )
    yield from row(
        "sequence_mask .5..2",
        algo(
            correction={
                "type": "sequence_mask",
                "weight": "row_product",
                "reduce": "sum",
                "low": 0.5,
                "high": 2,
            }
        ),
        "dapo",
        correct=lambda d: _inside(d.sum(1, keepdim=True).exp()),
    )

    def unbiased(c: Case) -> Any:
        c = replace(_every_row(c), b=c.p)
        kl = penalty.model_copy(update={"on_policy": True})
        loss = row("", algo(), "dapo", kl=0.04, use_bias_correction_kl=True)
        rows = {name: values for name, _, values in loss}
        return ours(c, algo(correction=NONE, kl=kl)), tuple(
            rows[f" [{n}]"](c)[1] for n in ("loss", "grad")
        )

    yield from both("KL use_bias_correction_kl (x/p) vs on_policy (x/b), p=b", "TRL", unbiased)


def _every_row(c: Case) -> Case:
    """Return the case with a first token in each row: TRL's means count empty rows too."""
    mask = c.mask.clone()
    mask[:, 0] = 1
    return replace(c, mask=mask, lengths=mask.sum(1).long())


def _inside(weights: Tensor) -> Tensor:
    return weights * ((weights >= 0.5) & (weights <= 2))
