"""The keys of the covariance of advantages and log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from agentgym_rl.core import Needs, ObjectiveKeys, Section, one_of


class CovarianceConfig(Section):
    """The section `algo.covariance`: the tokens whose (A − mean A) · (log p − mean log p) over the
    batch is large, which make the policy's entropy collapse (arXiv:2505.22617)."""

    needs: ClassVar[Sequence[Needs]] = (
        Needs("share", "rule", "'clip' or 'kl'", one_of("clip", "kl")),
        Needs("low", "rule", "'clip'", one_of("clip")),
        Needs("high", "rule", "'clip'", one_of("clip")),
        Needs("coef", "rule", "'kl'", one_of("kl")),
    )

    rule: Literal["none", "clip", "kl"] = "none"
    """The rule. clip: random tokens with a covariance in (low, high) have no gradient; kl: the
    tokens with the largest covariance cost coef · |log u|, where u is their ratio."""
    share: float = Field(default=2e-4, gt=0, le=1)
    """The share of the batch's tokens that are chosen, at least one."""
    low: float = 1.0
    """The lower bound on a covariance, for the rule clip."""
    high: float = 5.0
    """The upper bound on a covariance, for the rule clip."""
    coef: float = Field(default=1.0, gt=0)
    """The cost of one nat, for the rule kl."""

    @model_validator(mode="after")
    def _consistent(self) -> CovarianceConfig:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class CovarianceKeys(ObjectiveKeys):
    """The section `algo.covariance`, added to `algo`."""

    after = "whiten"

    covariance: CovarianceConfig = CovarianceConfig()

    @property
    def terms(self) -> dict[str, Section]:
        on: dict[str, Section] = {"covariance": self.covariance}
        return super().terms | (on if self.covariance.rule != "none" else {})

    @property
    def uses_every_row(self) -> bool:
        return self.covariance.rule == "kl" or super().uses_every_row

    @property
    def needs_batch(self) -> bool:
        return self.covariance.rule != "none" or super().needs_batch
