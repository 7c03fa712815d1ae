"""The key of the loss that balances the load of experts."""

from __future__ import annotations

from pydantic import Field

from agentgym_rl.core import ObjectiveKeys, Section


class BalanceKeys(ObjectiveKeys):
    """The key `algo.expert_balance_coef`, added to `algo`."""

    after = "entropy_coef"

    expert_balance_coef: float = Field(default=0.0, ge=0)
    """The coefficient of the loss that balances experts, as in Switch Transformers: for each layer,
    experts · Σ (share of the tokens) · (mean probability), which is 1 at equal loads."""

    @property
    def terms(self) -> dict[str, Section]:
        on: dict[str, Section] = {"expert_balance_coef": self} if self.expert_balance_coef else {}
        return super().terms | on

    @property
    def uses_every_row(self) -> bool:
        return bool(self.expert_balance_coef) or super().uses_every_row

    @property
    def needs_batch(self) -> bool:
        return bool(self.expert_balance_coef) or super().needs_batch
