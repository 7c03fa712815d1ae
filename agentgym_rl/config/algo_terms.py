"""The sections of `algo`: behavior weights, divergence, teachers, critic, deviations, rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from agentgym_rl.core.chat import is_list, is_mapping, is_tuple, is_url

from .section import Needs, Section, default, one_of


class NoCorrection(Section):
    """No behavior weight: the ratio to the proximal policy alone, as if it had sampled."""

    type: Literal["none"] = "none"


class _Correction(Section):
    weight: Literal["token", "row_mean", "row_product", "none"] = "token"
    """The factor of a token's loss. token: its own behavior weight w; row_mean: the geometric mean
    of w over its row; row_product: the product; none: 1, so that a mask only drops."""


class ClampCorrection(_Correction):
    """A behavior weight clamped to [floor, cap] (truncated importance sampling)."""

    type: Literal["clamp"] = "clamp"
    floor: float = Field(default=0.0, ge=0)
    """The lower bound: smaller weights are raised to it."""
    cap: float = Field(default=5.0, gt=0)
    """The upper bound: larger weights are lowered to it."""

    @model_validator(mode="after")
    def _consistent(self) -> ClampCorrection:
        if self.floor > self.cap:
            raise ValueError(f"floor {self.floor} exceeds cap {self.cap}")
        if self.weight == "none":
            raise ValueError('clamp with weight "none" clamps nothing; use type "none"')
        return self


class _Interval(_Correction):
    low: float
    """The lower end of the interval."""
    high: float
    """The upper end of the interval."""
    measure: Literal["ratio", "k2", "k3", "k3_reverse"] = "ratio"
    """The number that has to be in the interval. ratio: the weight w; or an estimate of the
    policies' divergence, k2: ½(log w)², k3: w − 1 − log w, k3_reverse: 1/w − 1 + log w."""
    cap: float | None = Field(default=None, gt=0)
    """The largest weight of what is kept; None: no bound but the interval's."""

    @model_validator(mode="after")
    def _consistent(self) -> _Interval:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        same = 1.0 if self.measure == "ratio" else 0.0
        if not self.low <= same <= self.high:
            raise ValueError(
                f"low {self.low} and high {self.high} drop every token on which both policies "
                f"agree, whose {self.measure} is {same:g}: the interval has to hold that number"
            )
        if self.cap is not None and self.weight == "none":
            raise ValueError(f'cap {self.cap} does nothing with weight "none": leave it out')
        return self


class MaskCorrection(_Interval):
    """A mask that drops tokens whose behavior weight is outside [low, high]."""

    type: Literal["mask"] = "mask"
    low: float = Field(default=0.0, ge=0)
    """The smallest weight (or `measure`) of a token that is kept."""
    high: float = Field(default=5.0, gt=0)
    """The largest weight (or `measure`) of a token that is kept."""


class SequenceMaskCorrection(_Interval):
    """A mask that drops rows whose geometric-mean behavior weight is outside [low, high]."""

    type: Literal["sequence_mask"] = "sequence_mask"
    low: float = Field(default=0.9, ge=0)
    """The smallest number (see `reduce`) of a row that is kept."""
    high: float = Field(default=1.1, gt=0)
    """The largest number (see `reduce`) of a row that is kept."""
    reduce: Literal["mean", "sum", "max"] = "mean"
    """The number of a row: the mean, sum or maximum of log w over its tokens (whose exponential is
    compared with the interval), or of the estimate in `measure`."""


class MomentMaskCorrection(_Correction):
    """A mask that drops the tokens of the batch with the largest (log w)², as few as it takes to
    bring the mean of the others below `limit` (M2PO)."""

    type: Literal["moment_mask"] = "moment_mask"
    weight: Literal["token", "row_mean", "row_product", "none"] = "none"
    """The factor of the tokens that are kept, as in the other types."""
    limit: float = Field(default=0.04, gt=0)
    """The bound on the mean of (log w)² over the tokens that are kept."""


Correction = Annotated[
    ClampCorrection | MaskCorrection | SequenceMaskCorrection | MomentMaskCorrection | NoCorrection,
    Field(discriminator="type"),
]


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


class TeacherModel(Section):
    """One entry of `algo.teacher.models`: a frozen model, and the tasks that it teaches."""

    model: str = Field(min_length=1)
    """The teacher: a folder or a Hugging Face id, which trainer ranks load; or the URL of a server
    of OpenAI's completions whose `echo` has log-probs (`arl engine`, vLLM, SGLang)."""
    weight: float = Field(default=1.0, gt=0)
    """The factor of this teacher's divergence."""
    only: dict[str, Any] = Field(default_factory=dict)
    """The values that `env_id`, or a field of the task's data, must have; empty: all tasks."""

    @field_validator("model")
    @classmethod
    def _url(cls, value: str) -> str:
        if value.startswith(("http://", "https://")) and not is_url(value):
            raise ValueError("expected http://host:port, or https://host")
        return value

    @property
    def is_served(self) -> bool:
        """Return whether the teacher is a server, rather than a folder."""
        return self.model.startswith(("http://", "https://"))

    def teaches(self, env_id: str, data: Mapping[str, Any]) -> bool:
        """Return whether the teacher teaches a task of this environment with these data."""
        known = {**data, "env_id": env_id}
        return all(name in known and known[name] == want for name, want in self.only.items())


class TeacherConfig(Section):
    """The section `algo.teacher`: on-policy distillation, which minimizes the divergence of the
    policy from other models on the tokens that the policy sampled."""

    models: tuple[TeacherModel, ...] = ()
    """The teachers; each may be its `model` alone. Empty: there is no distillation."""
    coef: float = Field(default=1.0, gt=0)
    """The cost of one nat of divergence from a teacher of weight 1."""
    placement: Literal["reward", "loss"] = "reward"
    """The place of the cost. reward: a reward of each token, to which the clip of the loss applies;
    loss: a term of the loss."""
    horizon: Literal["token", "row"] = "token"
    """The costs in a token's advantage. token: its own; row: also those of the later tokens of its
    row."""
    top_k: int = Field(default=0, ge=0)
    """The number of the teacher's likeliest tokens over which the loss term sums the divergence;
    all other tokens together count as one more. 0: estimated from the sampled token alone."""
    reward_coef: float = Field(default=1.0, ge=0)
    """The factor of advantages from the environment's rewards; 0: the teachers alone teach."""
    timeout_s: float = Field(default=120.0, gt=0)
    """The limit of one answer of a served teacher."""
    patience_s: float = Field(default=600.0, gt=0)
    """The time for which a failed request to a served teacher is repeated before the run ends."""

    @field_validator("models", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Take a text for the model of a teacher of all tasks, and name a key that no teacher
        has."""
        items: Sequence[Any] = value if is_list(value) or is_tuple(value) else [value]
        known = TeacherModel.model_fields
        for name in (key for item in items if is_mapping(item) for key in item if key not in known):
            raise ValueError(f"unknown key {name}; allowed: {', '.join(known)}")
        return [{"model": item} if isinstance(item, str) else item for item in items]

    @model_validator(mode="after")
    def _consistent(self) -> TeacherConfig:
        fields = type(self).model_fields.items()
        changed = [name for name, field in fields if getattr(self, name) != field.default]
        if changed and not self.models:
            raise ValueError(
                f"{', '.join(changed)} without models does nothing: name a teacher in "
                "algo.teacher.models, or leave it out"
            )
        if self.horizon == "row" and self.placement == "loss":
            raise ValueError(
                'horizon "row" needs placement reward: the loss term of a token has its own '
                "divergence alone"
            )
        if self.top_k and self.placement == "reward":
            raise ValueError(
                f'top_k {self.top_k} needs placement "loss": a reward is paid for the sampled '
                "token, and for no other"
            )
        if self.top_k and (served := [one.model for one in self.models if one.is_served]):
            raise ValueError(
                f"top_k {self.top_k} needs teachers in folders; {served[0]} is a server, which "
                "tells the log-probs of the sampled tokens: use 0"
            )
        waits = [name for name in changed if name in ("timeout_s", "patience_s")]
        if waits and not any(one.is_served for one in self.models):
            raise ValueError(
                f"{', '.join(waits)} without a served teacher does nothing, and none of the models "
                "is a URL: leave it out"
            )
        return self

    def weights(self, env_id: str, data: Mapping[str, Any]) -> list[float]:
        """Return the weight of each teacher for a task; 0 for one that does not teach it."""
        return [one.weight * one.teaches(env_id, data) for one in self.models]


class CriticConfig(Section):
    """The section `algo.critic`: a value model, which learns the return of each token
    (`algo.baseline` "critic")."""

    discount: float = Field(default=1.0, ge=0, le=1)
    """The discount γ from one trained token to the next."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """The λ of GAE: 1 uses a token's actual return, 0 only the value of the next token."""
    length_alpha: float | None = Field(default=None, gt=0)
    """The α of a λ that adapts to the l trained tokens of a row, 1 − 1/(α·l), in place of
    `gae_lambda` (VAPO); None: off."""
    return_lambda: float | None = Field(default=None, ge=0, le=1)
    """The λ of the returns that the critic learns; None: that of the advantages."""
    bootstrap_truncated: bool = False
    """The switch to add γ·V of the state after its last trained token to the reward of a truncated
    episode, whose future was cut off."""
    value_clip: float | None = Field(default=None, gt=0)
    """The limit on a batch's change of a value, in units of shaped reward; None: no limit."""
    warmup_steps: int = Field(default=0, ge=0)
    """The number of initial training batches that train only the critic."""

    @model_validator(mode="after")
    def _consistent(self) -> CriticConfig:
        if self.length_alpha is not None and self.gae_lambda != 1.0:
            raise ValueError(
                f"length_alpha {self.length_alpha} replaces gae_lambda {self.gae_lambda}: leave "
                "one of them out"
            )
        return self


class StdConfig(Section):
    """The section `algo.std`: the standard deviation of `algo.scale`."""

    of: Literal["rewards", "centred"] = "rewards"
    """The numbers whose deviation is taken. rewards: the rewards, about their own mean; centred:
    the rewards less the baseline, about 0."""
    unbiased: bool = True
    """The switch to divide the sum of squares by n − 1; false: by n."""
    eps: float = Field(default=1e-6, ge=0)
    """A number added to the standard deviation."""


class WhitenConfig(Section):
    """The section `algo.whiten`: advantages less their mean, divided by their deviation, over the
    whole batch."""

    over: Literal["none", "episodes", "tokens"] = "none"
    """The unit of equal weight in mean and deviation: all episodes, or all trained tokens; none: no
    whitening."""
    unbiased: bool = True
    """The switch to divide the sum of squares by n − 1; false: by n."""
    eps: float = Field(default=1e-6, ge=0)
    """A small number that keeps the deviation √v from being 0, in the way of `eps_in`."""
    eps_in: Literal["std", "variance", "floor"] = "std"
    """The divisor. std: √v + eps; variance: √(v + eps); floor: √max(v, eps)."""


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


class RewardConfig(Section):
    """The section `algo.reward`: the shaping of rewards for the advantages, in this order."""

    needs: ClassVar[Sequence[Needs]] = (
        Needs("overlong_limit", "overlong_penalty", "above 0"),
        Needs("overlong_buffer", "overlong_penalty", "above 0"),
        Needs("overlong_capped", "overlong_penalty", "above 0"),
    )

    parts: dict[str, float] = Field(default_factory=dict)
    """The weights of the parts that the reward is made of, by the names of episode metrics: each
    part has an advantage of its own, and their weighted sum is used (GDPO). Empty: the reward is
    used as it is."""
    truncated_factor: float = Field(default=1.0, ge=0, le=1)
    """The factor of the reward of truncated episodes, the penalty for not stopping properly."""
    overlong_penalty: float = Field(default=0.0, ge=0)
    """The penalty on the reward of an episode as long as `overlong_limit` or longer."""
    overlong_limit: int | None = Field(default=None, ge=1)
    """The limit in trained tokens of an episode (default: `algo.max_tokens`)."""
    overlong_buffer: int | None = Field(default=None, ge=1)
    """The tokens before the limit over which the penalty rises from 0 (default: a fifth of it)."""
    overlong_capped: bool = True
    """The switch to keep the penalty constant beyond the limit; false: it rises further, with the
    same slope."""
    bias: float = 0.0
    """A number added to the reward; then the sum is multiplied by `scale`."""
    scale: float = 1.0
    """The factor of the reward with `bias` added."""
    clip: float | None = Field(default=None, gt=0)
    """The bound on the magnitude of the scaled reward."""
    normalize: bool = False
    """The switch to subtract the batch's mean and divide by its standard deviation."""

    @model_validator(mode="after")
    def _consistent(self) -> RewardConfig:
        limit, buffer = self.overlong_limit, self.overlong_buffer
        if limit and buffer and buffer > limit:
            raise ValueError(f"overlong_buffer {buffer} exceeds overlong_limit {limit}")
        if self.scale == 0:
            raise ValueError("scale 0 makes all rewards equal: nothing would be learned")
        for name, weight in self.parts.items():
            if not weight:
                raise ValueError(f"parts has {name} = 0, which does nothing: leave it out")
        shaped = sorted(self.model_fields_set - {"parts"})
        for name in shaped if self.parts else ():
            if getattr(self, name) != default(self, name):
                raise ValueError(
                    f"{name} shapes the whole reward, and parts takes its place: leave one out"
                )
        return self
