"""The losses other than the kernel's, and the keys that single ones have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from agentgym_rl.core import LossKind, Needs, ObjectiveKeys, Section, one_of


class SapoConfig(Section):
    """The section `algo.sapo`: the temperatures of SAPO's gate."""

    tau_good: float = Field(default=1.0, gt=0)
    """The temperature of tokens with an advantage above 0."""
    tau_bad: float = Field(default=1.05, gt=0)
    """The temperature of the others: a higher one makes the gate narrower."""


class VespoConfig(Section):
    """The section `algo.vespo`: the weight of a row, exp(λ + k·log w − λ·w)."""

    k_good: float = Field(default=2.0, ge=0)
    """The k where the advantage is 0 or more."""
    lambda_good: float = Field(default=3.0, gt=0)
    """The λ where the advantage is 0 or more."""
    k_bad: float = Field(default=3.0, ge=0)
    """The k where the advantage is negative."""
    lambda_bad: float = Field(default=2.0, gt=0)
    """The λ where the advantage is negative."""


class LossKeys(ObjectiveKeys):
    """The keys of single losses, added to `algo`."""

    after = "whiten"
    needs: ClassVar[Sequence[Needs]] = (
        Needs("sapo", "loss", "'sapo'", one_of("sapo")),
        Needs("vespo", "loss", "'vespo'", one_of("vespo")),
    )

    sapo: SapoConfig = SapoConfig()
    vespo: VespoConfig = VespoConfig()


class DistanceKeys(ObjectiveKeys):
    """The keys of losses that bound a distance from the anchor, added to `algo`."""

    after = "behavior_clip"
    needs: ClassVar[Sequence[Needs]] = (
        Needs("dro_beta", "loss", "'dro'", one_of("dro")),
        Needs("divergence_limit", "loss", "'dppo'", one_of("dppo")),
    )

    divergence_limit: float = Field(default=0.2, gt=0, le=1)
    """The δ of dppo: the maximum distance of a token's probability from the behavior policy's."""
    dro_beta: float = Field(default=0.1, gt=0)
    """The β of dro: the cost of ½(log u)²."""


_CLIPS = ("clip_low", "clip_high")
CISPO = LossKind(function="arl_objectives.losses:cispo", keys=_CLIPS, takes_ratio=True, order=20)
SAPO = LossKind(function="arl_objectives.losses:sapo", takes_ratio=True, order=30)
GMPO = LossKind(function="arl_objectives.losses:gmpo", keys=_CLIPS, order=40)
VESPO = LossKind(function="arl_objectives.losses:vespo", order=50)
DRO = LossKind(function="arl_objectives.losses:dro", order=70)
DPPO = LossKind(function="arl_objectives.losses:dppo", order=80)
