"""The section `algo`: the objective."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from agentgym_rl.core.chat import is_mapping

from .section import Fitted, Section


class ClampCorrection(Section):
    """A behavior weight clamped to [0, cap] (token-level truncated importance sampling)."""

    type: Literal["clamp"] = "clamp"
    cap: float = Field(default=5.0, gt=0)


class _Interval(Section):
    low: float
    high: float

    @model_validator(mode="after")
    def _consistent(self) -> _Interval:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class MaskCorrection(_Interval):
    """A mask that drops tokens whose behavior weight is outside [low, high]."""

    type: Literal["mask"] = "mask"
    low: float = Field(default=0.0, ge=0)
    high: float = Field(default=5.0, gt=0)


class SequenceMaskCorrection(_Interval):
    """A mask that drops rows whose geometric-mean behavior weight is outside [low, high]."""

    type: Literal["sequence_mask"] = "sequence_mask"
    low: float = Field(default=0.9, ge=0)
    high: float = Field(default=1.1, gt=0)


Correction = Annotated[
    ClampCorrection | MaskCorrection | SequenceMaskCorrection, Field(discriminator="type")
]


class KlConfig(Section):
    """The section `algo.kl`: a penalty on the divergence from a frozen reference model."""

    coef: float = Field(default=0.0, ge=0)
    """The cost of one nat of divergence; 0: no reference model is loaded."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """The estimator of the divergence from one sampled token: −log r, ½(log r)², r − log r − 1.
    With `placement` loss, k1 has a gradient of mean 0 unless `on_policy`."""
    placement: Literal["loss", "reward"] = "loss"
    """A term of the loss; or a reward per token, to which later tokens of its row contribute."""
    on_policy: bool = False
    """The switch to weight the loss term by exp(current − behavior), a weight with a gradient."""
    reference: str = ""
    """The reference: "initial" (the model the run begins with), a folder or a Hugging Face id."""

    @model_validator(mode="after")
    def _consistent(self) -> KlConfig:
        if self.coef and not self.reference:
            raise ValueError(
                f"coef {self.coef} needs a reference model; set "
                'reference to "initial" (the model the run begins with) or to a model'
            )
        if self.on_policy and self.placement == "reward":
            raise ValueError("on_policy needs placement loss, because a reward has no gradient")
        return self


class CriticConfig(Section):
    """The section `algo.critic`: a value model, which learns the return of each token
    (`algo.baseline` "critic")."""

    discount: float = Field(default=1.0, ge=0, le=1)
    """The discount γ from one trained token to the next."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """The λ of GAE: 1 uses a token's actual return, 0 only the value of the next token."""
    value_clip: float | None = Field(default=None, gt=0)
    """The limit on a batch's change of a value, in units of shaped reward; None: no limit."""
    warmup_steps: int = Field(default=0, ge=0)
    """The number of initial training batches that train only the critic."""


class RewardConfig(Section):
    """The section `algo.reward`: the shaping of rewards for the advantages, in this order."""

    overlong_penalty: float = Field(default=0.0, ge=0)
    """The penalty on the reward of an episode as long as `overlong_limit` or longer."""
    overlong_limit: int | None = Field(default=None, ge=1)
    """The limit in trained tokens of an episode (default: `algo.max_tokens`)."""
    overlong_buffer: int | None = Field(default=None, ge=1)
    """The tokens before the limit over which the penalty rises from 0 (default: a fifth of it)."""
    bias: float = 0.0
    """A number added to the reward; then the sum is multiplied by `scale`."""
    scale: float = 1.0
    clip: float | None = Field(default=None, gt=0)
    """The bound on the magnitude."""
    normalize: bool = False
    """The switch to subtract the batch's mean and divide by its standard deviation."""

    @model_validator(mode="after")
    def _consistent(self) -> RewardConfig:
        limit, buffer = self.overlong_limit, self.overlong_buffer
        if limit and buffer and buffer > limit:
            raise ValueError(f"overlong_buffer {buffer} exceeds overlong_limit {limit}")
        if self.scale == 0:
            raise ValueError("scale 0 makes all rewards equal: nothing would be learned")
        return self


LOSSES = ("ppo", "gspo", "cispo", "reinforce", "dppo")


class AlgoConfig(Section):
    """The objective (formulas and sources: agentgym_rl/algo)."""

    loss: str = "ppo"
    """The loss. ppo: the clipped surrogate; gspo: with one ratio per row; cispo: with a constant
    ratio and log-probs; reinforce: no ratio at all; dppo: PPO's ratio without tokens that are far
    from the behavior policy; or `module:function` (algo/own_loss.py)."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of that function."""
    naive: bool = False
    """A ratio against the behavior policy, no behavior weight: plain PPO, for ablations."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    clip_high: float = Field(default=0.2, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    """The bound c on the objective of negative advantages (ppo, gspo); None is off."""
    divergence_limit: float = Field(default=0.2, gt=0, le=1)
    """The δ of dppo: the maximum distance of a token's probability from the behavior policy's."""
    behavior_correction: Correction = MaskCorrection()
    aggregation: Literal["token", "sequence", "constant"] = "token"
    max_tokens: Fitted[int] = Field(default=192, ge=1)
    """The nominal trained tokens of an episode: the constant of `constant` aggregation."""
    baseline: Literal["none", "mean", "leave_one_out", "batch_mean", "critic"] = "mean"
    """The baseline of rewards. "critic": a learned value for each token (`critic`)."""
    scale: Literal["none", "group_std", "batch_std"] = "group_std"
    """The scale of advantages. With a critic, batch_std normalizes mean and standard deviation of
    the batch's token advantages."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """The bonus for one nat of the policy's entropy, at each trained token."""
    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """The γ of turns: a turn's reward counts γ^d for the turn d turns earlier in the same
    conversation."""
    shuffle_advantages: bool = False
    """A negative control: permute advantages over the batch; reward must then not rise."""
    kl: KlConfig = KlConfig()
    reward: RewardConfig = RewardConfig()
    critic: CriticConfig = CriticConfig()

    @field_validator("behavior_correction", mode="before")
    @classmethod
    def _default_type(cls, value: Any) -> Any:
        """Apply a table without `type` to the default correction."""
        return {"type": "mask", **value} if is_mapping(value) else value

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, loss: str) -> str:
        module, colon, function = loss.partition(":")
        own = colon and function.isidentifier() and all(map(str.isidentifier, module.split(".")))
        if loss not in LOSSES and not own:
            raise ValueError(f"expected {', '.join(LOSSES)}, or a function as module:function")
        return loss

    @model_validator(mode="after")
    def _consistent(self) -> AlgoConfig:
        if self.loss_options and self.loss in LOSSES:
            raise ValueError(
                f"loss_options are only for a function (module:function), and loss is "
                f"{self.loss!r}: leave them out"
            )
        if self.baseline == "none" and self.scale == "group_std":
            raise ValueError("baseline 'none' with scale 'group_std' has no meaning; use batch_std")
        if self.dual_clip is not None and self.loss not in ("ppo", "gspo"):
            raise ValueError(
                f"dual_clip {self.dual_clip} does nothing with loss {self.loss!r}: leave it out, "
                "or use ppo or gspo"
            )
        self._consistent_critic()
        limit = self.reward.overlong_limit or self.max_tokens
        if (self.reward.overlong_buffer or 0) > limit:
            raise ValueError(
                f"reward.overlong_buffer {self.reward.overlong_buffer} exceeds max_tokens {limit}, "
                "the limit where reward.overlong_limit is not set"
            )
        return self

    def _consistent_critic(self) -> None:
        if self.baseline != "critic":
            if self.critic != CriticConfig():
                raise ValueError(
                    f"critic is configured, but baseline {self.baseline!r} uses none: leave it "
                    "out, or set baseline to critic"
                )
        elif self.scale == "group_std":
            raise ValueError(
                "baseline 'critic' with scale 'group_std' has no meaning: a critic judges tokens, "
                "not episodes of a group; use batch_std or none"
            )
        elif self.shuffle_advantages:
            raise ValueError(
                "shuffle_advantages permutes advantages of episodes; baseline 'critic' gives "
                "every token its own: use another baseline for the negative control"
            )
