"""The keys of the divergence from a reference model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentgym_rl.core import (
    Needs,
    ObjectiveKeys,
    OtherModel,
    Section,
    default,
    is_function_path,
    one_of,
)

INITIAL = "initial"
"""The `reference` that is the model with which the run begins."""


class KlConfig(Section):
    """The section `algo.kl`: a penalty on the divergence from a reference model."""

    needs: ClassVar[Sequence[Needs]] = (
        Needs("ema", "refresh_every", "1 or more (1: after each batch)"),
        # A reward has no gradient.
        Needs("on_policy", "placement", "'loss'", one_of("loss")),
        Needs("gradient", "placement", "'loss'", one_of("loss")),
    )

    coef: float = Field(default=0.0, ge=0)
    """The cost of one nat of divergence; 0: no reference model is loaded."""
    estimator: Literal["k1", "k2", "k3", "abs"] = "k3"
    """The estimator of the divergence from one sampled token: −log r, ½(log r)², r − log r − 1,
    |log r|. With `placement` loss, k1 has a gradient of mean 0 unless `on_policy`, or `gradient`
    is not that of the estimate."""
    placement: Literal["loss", "reward", "token"] = "loss"
    """The place of the penalty. loss: a term of the loss; reward: a reward of each token, to which
    later tokens of its row contribute; token: a reward of each token alone."""
    on_policy: bool = False
    """The switch to weight the loss term by exp(current − behavior), a weight with a gradient."""
    gradient: Literal["estimate", "score", "k2"] = "estimate"
    """The gradient of the loss term. estimate: that of the estimate; score: the same plus the
    score-function term, estimate · ∇ log π; k2: that of k2, whatever the estimate."""
    clamp_ratio: float | None = Field(default=None, gt=0)
    """The bound on |log r|; beyond it there is no gradient. None: no bound."""
    clamp: float | None = Field(default=None, gt=0)
    """The bound on the estimate's magnitude; beyond it there is no gradient. None: no bound."""
    reference: str = ""
    """The reference: "initial" (the model the run begins with), a folder or a Hugging Face id."""

    refresh_every: int = Field(default=0, ge=0)
    """The number of batches after which the reference moves to the policy; 0: it never moves."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """The share of itself that the reference keeps when it moves: an exponential moving average of
    the policy; 0: it becomes the policy."""

    @model_validator(mode="after")
    def _consistent(self) -> KlConfig:
        if self.coef and not self.reference:
            raise ValueError(
                f"coef {self.coef} needs a reference model; set "
                'reference to "initial" (the model the run begins with) or to a model'
            )
        if self.on_policy and self.gradient != "estimate":
            raise ValueError(
                f"on_policy has a score-function term of its own, and gradient is "
                f"{self.gradient!r}: leave one of them out"
            )
        return self


def _has_own_part(values: Mapping[str, Any]) -> bool:
    """Return whether a part of the objective comes from the user or another package, and may need
    the reference model."""
    from agentgym_rl.config import AlgoConfig  # it is made of these keys

    own = is_function_path(str(values.get("loss", ""))) or bool(values.get("advantage"))
    return own or bool(values.keys() - AlgoConfig.model_fields.keys())


class KlKeys(ObjectiveKeys):
    """The section `algo.kl`, added to `algo`."""

    after = "vespo"
    needs: ClassVar[Sequence[Needs]] = (Needs("kl", "kl.coef", "above 0", unless=_has_own_part),)

    kl: KlConfig = KlConfig()

    @model_validator(mode="after")
    def _no_idle_key_of_kl(self) -> Self:
        """Refuse keys of the penalty if only a user's part of the objective has the reference."""
        used = {"reference", "refresh_every", "ema"}
        idle = [
            f"kl.{key}"
            for key, value in self.kl
            if key not in used and value != default(self.kl, key)
        ]
        if idle and not self.kl.coef:
            raise ValueError(
                f"{', '.join(idle)} does nothing unless kl.coef is above 0, and it is 0.0: leave "
                "it out, or change kl.coef"
            )
        return self

    @property
    def terms(self) -> dict[str, Section]:
        on: dict[str, Section] = {"kl.reference": self.kl} if self.kl.reference else {}
        return super().terms | on | ({"kl": self.kl} if self.kl.coef else {})

    @property
    def uses_every_row(self) -> bool:
        in_loss = bool(self.kl.coef) and self.kl.placement == "loss"
        return in_loss or super().uses_every_row

    @property
    def needs_batch(self) -> bool:
        in_reward = bool(self.kl.coef) and self.kl.placement != "loss"
        return in_reward or super().needs_batch

    @property
    def other_models(self) -> list[OtherModel]:
        kl, found = self.kl, super().other_models
        if not kl.reference:
            return found
        model = "" if kl.reference == INITIAL else kl.reference
        key = f"algo.kl.refresh_every {kl.refresh_every}" if kl.refresh_every else ""
        its = OtherModel(model=model, role="reference", title="the reference model", moved_by=key)
        return [its, *found]

    def located(self, folder_of: Callable[[str], str], *, env_id: str) -> Self:
        found = super().located(folder_of, env_id=env_id)
        if self.kl.reference in ("", INITIAL):
            return found
        kl = self.kl.model_copy(update={"reference": folder_of(self.kl.reference)})
        return found.model_copy(update={"kl": kl})
