"""The rows of losses and gradients: AReaL and NeMo RL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nemo
import torch
from arl_objectives.keys.kl import KlConfig
from arl_objectives.kl import kl_estimates
from cases import NONE, TOKEN, Case, Pair, Values, algo, both, fresh, ours, take, theirs
from torch import Tensor

from agentgym_rl.algo import Tally, behavior_weights, tally_mismatch
from agentgym_rl.config import AlgoConfig, MaskCorrection


# ------------------------------------------------------------------ AReaL
def areal_rows(areal: Path) -> Iterator[tuple[str, str, Values]]:
    estimator = take(areal / "utils/data.py", "KLEstimator").KLEstimator
    names = ("_compute_sequence_level_ratio_and_advantages", "_check_bounds", "sapo_loss_fn")
    its = take(
        areal / "utils/functional/functional.py",
        *names,
        *("RejectionSamplingResult", "apply_rejection_sampling", "ppo_actor_loss_fn"),
        known={"KLEstimator": estimator},
    )
    its.RejectionSamplingResult = dataclass(its.RejectionSamplingResult)
    its.apply_rejection_sampling.__globals__["RejectionSamplingResult"] = (
        its.RejectionSamplingResult
    )

    def ppo(recipe: AlgoConfig, *, prox: bool = True, decoupled: bool = True, **keys: Any) -> Pair:
        rejection = keys.pop("rs", None)
        keys = {"eps_clip": 0.2, **keys}

        def loss(c: Case, x: Tensor) -> Tensor:
            anchor = c.p if prox else c.b
            return its.ppo_actor_loss_fn(
                logprobs=x,
                proximal_logprobs=anchor,
                old_logprobs=c.b if decoupled else anchor,
                advantages=c.tokens(c.advantages),
                loss_mask=c.flat,
                rejection_sampling=rejection and SimpleNamespace(**{"agg": "mean", **rejection}),
                **keys,
            )[0]

        return lambda c: (ours(c, recipe), theirs(c, lambda x: loss(c, x)))

    def rs(level: str, action: str, metric: str, upper: float, lower: float | None = None, **more):
        return {
            "level": level,
            "action": action,
            "metric": metric,
            "upper": upper,
            "lower": lower,
            **more,
        }

    mask, rows = {"type": "mask"}, {"type": "sequence_mask", "weight": "row_mean"}
    gspo, ratio = {"importance_sampling_level": "sequence"}, ("token", "mask", "ratio")
    for name, recipe, keys in (
        ("PPO naive (prox=behavior)", algo(naive=True), {"prox": False}),
        (
            "PPO no decoupling (ratio to prox, no weight)",
            algo(correction=NONE),
            {"decoupled": False},
        ),
        (
            "decoupled, clip-higher .28, c_clip 3",
            algo(correction=mask | {"low": 0, "high": 5}, clip_high=0.28, dual_clip=3),
            {"eps_clip_higher": 0.28, "c_clip": 3.0, "rs": rs(*ratio, 5.0)},
        ),
        ("decoupled, mask<=5", algo(correction=mask | {"high": 5}), {"rs": rs(*ratio, 5.0)}),
        (
            "decoupled, mask .5..2",
            algo(correction=mask | {"low": 0.5, "high": 2}),
            {"rs": rs(*ratio, 2.0, 0.5)},
        ),
        (
            "decoupled, clamp<=2",
            algo(correction={"type": "clamp", "cap": 2}),
            {"rs": rs("token", "clamp", "ratio", 2.0)},
        ),
        (
            "decoupled, clamp .5..2",
            algo(correction={"type": "clamp", "floor": 0.5, "cap": 2}),
            {"rs": rs("token", "clamp", "ratio", 2.0, 0.5)},
        ),
        (
            "rs metric kl_k1 token mask",
            algo(correction=mask | {"high": 1.3}),
            {"rs": rs("token", "mask", "kl_k1", float(torch.tensor(1.3).log()))},
        ),
        (
            "rs metric kl_k2 token mask",
            algo(correction=mask | {"measure": "k2", "high": 0.05}),
            {"rs": rs("token", "mask", "kl_k2", 0.05)},
        ),
        (
            "rs metric kl_k3 token mask",
            algo(correction=mask | {"measure": "k3_reverse", "high": 0.05}),
            {"rs": rs("token", "mask", "kl_k3", 0.05)},
        ),
        (
            "sequence-level mask (geo mean weight) .9..1.1",
            algo(correction=rows | {"low": 0.9, "high": 1.1}),
            {"rs": rs("sequence", "mask", "ratio", 1.1, 0.9)},
        ),
        (
            "sequence-level mask, sum .5..2",
            algo(correction=rows | {"low": 0.5, "high": 2, "reduce": "sum"}),
            {"rs": rs("sequence", "mask", "ratio", 2.0, 0.5) | {"agg": "sum"}},
        ),
        (
            "sequence-level mask, max <=1.5",
            algo(correction=rows | {"low": 0, "high": 1.5, "reduce": "max"}),
            {"rs": rs("sequence", "mask", "ratio", 1.5) | {"agg": "max"}},
        ),
        (
            "sequence-level clamp <=1.1",
            algo(correction={"type": "clamp", "weight": "row_mean", "cap": 1.1}),
            {"rs": rs("sequence", "clamp", "ratio", 1.1)},
        ),
        (
            "sequence-level mask kl_k2 mean",
            algo(correction=rows | {"weight": "token", "measure": "k2", "low": 0, "high": 0.05}),
            {"rs": rs("sequence", "mask", "kl_k2", 0.05)},
        ),
        (
            "sequence-level mask kl_k3 sum",
            algo(
                correction=rows
                | {
                    "weight": "token",
                    "measure": "k3_reverse",
                    "low": 0,
                    "high": 0.2,
                    "reduce": "sum",
                }
            ),
            {"rs": rs("sequence", "mask", "kl_k3", 0.2) | {"agg": "sum"}},
        ),
        ("GSPO no rejection", algo("gspo", NONE), gspo),
        (
            "GSPO + token mask .5..2",
            algo("gspo", mask | {"low": 0.5, "high": 2}, ratio="row_kept"),
            gspo | {"rs": rs(*ratio, 2.0, 0.5)},
        ),
    ):
        yield from both(name, "AReaL", ppo(recipe, **keys))

    def sapo(recipe: AlgoConfig, level: str) -> Pair:
        return lambda c: (
            ours(c, recipe),
            theirs(
                c,
                lambda x: its.sapo_loss_fn(
                    x, c.p, c.tokens(c.advantages), 1.0, 1.05, c.flat, level
                )[0],
            ),
        )

    yield from both("SAPO", "AReaL", sapo(algo("sapo", NONE), "token"))
    yield from both(
        "SAPO, sequence level", "AReaL", sapo(algo("sapo", NONE, ratio="row"), "sequence")
    )
    actor = take(areal / "trainer/ppo/actor.py", "_apply_m2po_masking", "_get_m2po_loss_mask")

    def m2po(c: Case) -> Any:
        mask = actor._apply_m2po_masking(c.b, c.p, c.flat, 0.04)
        count = int(c.flat.sum())

        def loss(x):
            return (
                its.ppo_actor_loss_fn(x, c.p, c.b, c.tokens(c.advantages), 0.2, mask)[0]
                * int(mask.sum())
                / count
            )

        return ours(c, algo(correction={"type": "moment_mask", "limit": 0.04})), theirs(c, loss)

    yield from both("M2PO .04", "AReaL", m2po)
    for kind in ("k1", "k2", "k3"):
        clamped = KlConfig(estimator=kind, clamp=10)
        yield (
            f"kl {kind} estimate (f32)",
            "AReaL",
            lambda c, k=clamped: (
                kl_estimates(c.x, c.ref, k),
                estimator(k.estimator)(c.x, c.ref),
            ),
        )


# ------------------------------------------------------------------ NeMo RL
def nemo_rows() -> Iterator[tuple[str, str, Values]]:
    clip = {"clip_low": 0.2, "clip_high": 0.28}

    def actor(name: str, recipe: AlgoConfig, aggregation: str, **keys: Any) -> Any:
        recipe = recipe.model_copy(update={"aggregation": aggregation})
        token = aggregation == "token"

        def loss(c, x):
            return nemo.policy_loss(c, x, token=token, **keys)

        def pair(c):
            return (ours(c, recipe), theirs(c, lambda x: loss(c, x)))

        return both(f"{name} {'token' if token else 'seq-mean'}", "NeMo RL", pair)

    for aggregation, suffix in (("token", "token"), ("sequence", "seq-mean")):
        token, row = aggregation == "token", partial(actor, aggregation=aggregation)
        yield from row("ppo clip .2/.28 IS-corrected", algo(**clip), clip=(0.2, 0.28))
        yield from row("ppo dual clip 3 IS-corrected", algo(dual_clip=3), dual=3.0)
        yield from row("ppo no IS correction (w=1)", algo(correction=NONE), correct=False)
        yield from row("reinforce (disable_ppo_ratio) IS", algo("reinforce"), ratio="none")
        yield from row(
            "TIS max 2 (clamp)", algo(correction={"type": "clamp", "cap": 2}), kind="tis", high=2.0
        )
        yield from row(
            "TIS .5..2 (clamp)",
            algo(correction={"type": "clamp", "floor": 0.5, "cap": 2}),
            kind="tis",
            low=0.5,
            high=2.0,
        )
        yield from row(
            "icepop .5..2 (mask)",
            algo(correction={"type": "mask", "low": 0.5, "high": 2}),
            kind="icepop",
            low=0.5,
            high=2.0,
        )
        yield from row(
            "seq-mask-tis .9..1.1 (sequence_mask)",
            algo(correction={"type": "sequence_mask"}),
            kind="seq-mask-tis",
            low=0.9,
            high=1.1,
        )
        for kind in ("k1", "k2", "k3"):
            for on_policy in (False, True):
                kl = KlConfig(
                    **{
                        "coef": 0.04,
                        "reference": "initial",
                        "estimator": kind,
                        "on_policy": on_policy,
                    },
                    gradient="estimate" if on_policy else "score",
                    **{"clamp": 10, "clamp_ratio": 20},
                )
                recipe = algo(aggregation=aggregation, kl=kl)
                name = "on_policy_approx" if on_policy else "default"

                def penalized(c: Case, recipe=recipe, kind=kind, on=on_policy, token=token) -> Any:
                    def loss(x: Tensor) -> Tensor:
                        kl = nemo.kl_loss(c, x, kind=kind, token=token, on_policy=on)
                        return nemo.policy_loss(c, x, token=token) + 0.04 * kl

                    return ours(c, recipe), theirs(c, loss)

                yield from both(f"KL {kind} coef .04 {name} {suffix}", "NeMo RL", penalized)
    for name, recipe, keys in (
        (
            "CISPO clip 1/4 IS token",
            algo("cispo", clip_low=1, clip_high=4),
            {"ratio": "cispo", "clip": (1, 4)},
        ),
        (
            "GSPO + seq-level IS correction",
            algo("gspo", TOKEN | {"weight": "row_product"}, aggregation="sequence"),
            {"ratio": "row", "token": False},
        ),
        (
            "GSPO + seq-level TIS 2",
            algo(
                "gspo", {"type": "clamp", "weight": "row_product", "cap": 2}, aggregation="sequence"
            ),
            {"ratio": "row", "token": False, "kind": "tis", "high": 2.0},
        ),
        (
            "GSPO without correction",
            algo("gspo", NONE, aggregation="sequence"),
            {"ratio": "row", "token": False, "correct": False},
        ),
    ):

        def its(c, x, keys=keys):
            return nemo.policy_loss(c, x, **keys)

        def pair(c, r=recipe, f=its):
            return (ours(c, r), theirs(c, lambda x: f(c, x)))

        yield from both(name, "NeMo RL", pair)

    def on(c):
        return (
            ours(fresh(c), algo()),
            theirs(fresh(c), lambda x: nemo.policy_loss(fresh(c), x, ratio="one")),
        )

    yield from both("force_on_policy_ratio IS", "NeMo RL", on)

    def nll(c):
        return (
            ours(c, algo(positive_nll=0.1)),
            theirs(c, lambda x: nemo.policy_loss(c, x) + 0.1 * nemo.positive_nll(c, x)),
        )

    yield from both("VAPO positive NLL .1", "NeMo RL", nll)
    names = {"gen_kl_error": "kl", "policy_kl_error": "kl_reverse", "js_divergence_error": "js"}
    for theirs_name, name in names.items():
        yield (
            f"metric {theirs_name}",
            "NeMo RL",
            lambda c, t=theirs_name, n=name: (
                torch.tensor(_metrics(c)[f"mismatch/{n}"]),
                nemo.divergences(c)[t],
            ),
        )
    for name, formula in {
        "mismatch/token_mult_prob_error": lambda c: (c.p - c.b).abs().exp(),
        "mismatch/sampling_importance_ratio": lambda c: (c.p - c.b).exp(),
        "policy/approx_entropy": lambda c: -(c.p - c.b).exp() * c.p,
    }.items():
        yield (
            f"metric {name.partition('/')[2]}",
            "NeMo RL",
            lambda c, n=name, f=formula: (
                torch.tensor(_metrics(c)[n]),
                nemo.mean(f(c), c.mask),
            ),
        )
    yield "metric is_oob_ratio icepop = behavior_weight_masked", "NeMo RL", _out_of_bounds


def _metrics(c: Case) -> dict[str, float]:
    tally, flat = Tally(), c.flat
    zeros = torch.zeros(int(flat.sum()), dtype=torch.int64)
    tally_mismatch(tally, c.p[flat], c.b[flat], zeros, zeros.bool())
    return tally.values()


def _out_of_bounds(c: Case) -> tuple[Tensor, Tensor]:
    mask, flat = MaskCorrection(low=0.5, high=2), c.flat
    zeros = torch.zeros(int(flat.sum()), dtype=torch.int64)
    weight = (c.p - c.b).exp()
    outside = ((weight < 0.5) | (weight > 2)).double()
    masked = behavior_weights(c.p[flat], c.b[flat], zeros, mask).masked
    return masked.double().mean(), nemo.mean(outside, c.mask)
