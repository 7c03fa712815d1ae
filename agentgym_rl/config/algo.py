"""The section `algo`: the objective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from agentgym_rl.core.chat import is_mapping
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.extensions import extension_names, is_function_path, load_extension

from .algo_terms import (
    Correction,
    CovarianceConfig,
    CriticConfig,
    KlConfig,
    MaskCorrection,
    RewardConfig,
    SapoConfig,
    StdConfig,
    TeacherConfig,
    VespoConfig,
    WhitenConfig,
)
from .section import (
    INNER,
    Fitted,
    Needs,
    Section,
    Sections,
    default,
    field_of,
    named_or_function,
    none_of,
    one_of,
)
from .trainer import TrainerConfig

_TERMS = "objectives"
"""The group of entry points of the terms that other packages add."""
LOSSES = ("ppo", "gspo", "cispo", "sapo", "gmpo", "vespo", "reinforce", "dro", "dppo")
WITH_RATIO = ("ppo", "gspo", "cispo", "sapo")
"""The losses that take any `algo.ratio`, as do a user's own."""
_OWN_RATIO = [loss for loss in LOSSES if loss not in WITH_RATIO]
_STD = one_of("group_std", "batch_std", "leave_one_out_std")


def _of_loss(key: str, *losses: str) -> Needs:
    """Return the rule of a key that only some losses have."""
    return Needs(key, "loss", " or ".join(map(repr, losses)), one_of(*losses))


def _has_own_part(values: Mapping[str, Any]) -> bool:
    """Return whether a part of the objective comes from the user or another package, and may need
    the reference model."""
    own = is_function_path(str(values.get("loss", ""))) or bool(values.get("advantage"))
    return own or bool(values.keys() - AlgoConfig.model_fields.keys())


class AlgoConfig(Section):
    """The objective (formulas and sources: agentgym_rl/algo)."""

    model_config = ConfigDict(extra="allow")
    added_by = f"an entry point of the group agentgym_rl.{_TERMS}"

    needs: ClassVar[Sequence[Needs]] = (
        Needs("loss_options", "loss", "a function (module:function)", none_of(*LOSSES)),
        _of_loss("clip_low", "ppo", "gspo", "cispo", "gmpo"),
        _of_loss("clip_high", "ppo", "gspo", "cispo", "gmpo"),
        _of_loss("dual_clip", "ppo", "gspo"),
        _of_loss("behavior_clip", "ppo"),
        _of_loss("sapo", "sapo"),
        _of_loss("vespo", "vespo"),
        _of_loss("dro_beta", "dro"),
        _of_loss("divergence_limit", "dppo"),
        Needs("ratio", "loss", f"{', '.join(WITH_RATIO)} or a function", none_of(*_OWN_RATIO)),
        Needs("behavior_correction", "naive", "false", one_of(False)),
        Needs("critic", "baseline", "'critic'", one_of("critic")),
        # A critic's batch_std is one of advantages, and no deviation of rewards.
        Needs("std", "scale", "a standard deviation of rewards", _STD),
        Needs("std", "baseline", "no critic", none_of("critic")),
        Needs("whiten", "whiten.over", "episodes or tokens", none_of("none")),
        Needs("kl", "kl.coef", "above 0", unless=_has_own_part),
        Needs("advantage_options", "advantage", "a function (module:function)"),
        *(
            Needs(key, "advantage", "unset (a function has its own)", one_of(None))
            for key in ("baseline", "scale", "std", "shuffle_advantages")
        ),
        *(
            Needs(key, "teacher.reward_coef", "above 0")
            for key in ("reward", "std", "whiten", "turn_discount", "shuffle_advantages")
        ),
    )

    loss: str = "ppo"
    """The loss. ppo: the clipped surrogate; gspo: with one ratio per row; cispo: with a constant
    ratio and log-probs; sapo: with a smooth gate; gmpo: the geometric mean of clipped ratios;
    vespo: log-probs with a weight per row; reinforce: no ratio at all; dro: a squared distance in
    place of the clip; dppo: PPO's ratio without tokens that are far from the behavior policy; or
    `module:function` (algo/own_loss.py)."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of that function."""
    naive: bool = False
    """The switch to plain PPO, for ablations: the ratio is to the behavior policy, and there is no
    behavior weight."""
    ratio: Literal["token", "row", "row_kept", "row_token"] | None = None
    """The ratio of a token. token: its own; row: the geometric mean of its row; row_kept: the same
    over the tokens that `behavior_correction` keeps; row_token: that of the row, with the gradient
    of the token alone (GSPO-token). None: row for gspo, token for the others."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """The lower clip, at a ratio of 1 − clip_low: a token that has lost this share of its
    probability is lowered no further."""
    clip_high: float = Field(default=0.2, gt=0)
    """The upper clip, at a ratio of 1 + clip_high: a token that has gained this share of its
    probability is raised no further."""
    dual_clip: float | None = Field(default=None, gt=1)
    """The bound c on the objective of negative advantages (ppo, gspo); None is off."""
    behavior_clip: float = Field(default=0.2, gt=0, le=1)
    """A second lower clip of ppo, around the behavior policy: a token that has lost this share of
    the probability with which it was sampled is lowered no further, so old episodes do not undo the
    policy (docs/staleness.md). With `rollout.max_staleness` 0 it adds nothing to an equal
    `clip_low`. 1: no limit, as in the papers."""
    divergence_limit: float = Field(default=0.2, gt=0, le=1)
    """The δ of dppo: the maximum distance of a token's probability from the behavior policy's."""
    dro_beta: float = Field(default=0.1, gt=0)
    """The β of dro: the cost of ½(log u)²."""
    behavior_correction: Correction = MaskCorrection()
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """The weight of a token in the loss. token: equal for all tokens of the batch; sequence: equal
    for all episodes, shared by their tokens; constant: 1 over `max_tokens`, however long its
    episode is."""
    max_tokens: Fitted[int] = Field(default=192, ge=1)
    """The nominal trained tokens of an episode: the constant of `constant` aggregation."""
    baseline: Literal[
        "none", "mean", "leave_one_out", "length_weighted", "batch_mean", "critic"
    ] = "mean"
    """The number subtracted from a reward. mean: the group's mean; leave_one_out: the mean of the
    group's other episodes; length_weighted: the group's mean, weighted by trained tokens;
    batch_mean: the batch's mean; critic: a learned value for each token (`critic`); none: 0."""
    scale: Literal["none", "group_std", "leave_one_out_std", "batch_std", "nonzero_share"] = (
        "group_std"
    )
    """The divisor of advantages. group_std: the group's standard deviation; leave_one_out_std: that
    of the group's other episodes (1 where they are equal); batch_std: the batch's, with a critic
    the whitening of the batch's token advantages; nonzero_share: the share of rewards other than 0
    (GPG); none: 1."""
    advantage: str | None = None
    """The function `module:function` that computes the advantages of tokens, in place of `baseline`
    and `scale` (algo/own_advantage.py); None: there is none."""
    advantage_options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of that function."""
    leave_out: list[str] = Field(default_factory=list)
    """The episodes whose tokens do not train, although their rewards count for others: "truncated",
    or names of episode metrics that are not 0 for them."""
    positive_nll: float = Field(default=0.0, ge=0)
    """The coefficient of −log π, averaged over the tokens of episodes with a reward above 0."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """The bonus for one nat of the policy's entropy, at each trained token."""
    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """The γ of turns: a turn's reward counts γ^d for the turn d turns earlier in the same
    conversation."""
    shuffle_advantages: bool = False
    """The switch to a negative control: advantages are permuted over the batch, so the reward must
    not rise."""
    std: StdConfig = StdConfig()
    whiten: WhitenConfig = WhitenConfig()
    covariance: CovarianceConfig = CovarianceConfig()
    sapo: SapoConfig = SapoConfig()
    vespo: VespoConfig = VespoConfig()
    kl: KlConfig = KlConfig()
    teacher: TeacherConfig = TeacherConfig()
    reward: RewardConfig = RewardConfig()
    critic: CriticConfig = CriticConfig()

    @classmethod
    def added_names(cls) -> Sequence[str]:
        """Return the names of the terms that other packages register."""
        return [name for name in extension_names(_TERMS) if name not in cls.model_fields]

    @classmethod
    def added_field(cls, name: str) -> FieldInfo:
        """Return the key of a registered term.

        Raises:
            ConfigError: its package cannot be imported, or it has no section.
        """
        kind: object = getattr(load_extension(_TERMS, name), "section", None)
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            raise ConfigError(
                f"{_TERMS} has {name!r}, whose section is {kind!r:.80}; expected a class with a "
                "section, a subclass of agentgym_rl.config.Section"
            )
        try:
            usual = kind()
        except ValidationError as error:
            raise ConfigError(f"algo.{name} has keys without a default: {error}") from error
        return FieldInfo(annotation=kind, default=usual)

    @property
    def term_sections(self) -> Mapping[str, Section]:
        """Return the sections of the terms of other packages that are on, by name."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="before")
    @classmethod
    def _with_added(cls, values: Any) -> Any:
        """Read the sections of other packages' terms."""
        if not is_mapping(values):
            return values
        added = {str(name): it for name, it in values.items() if name not in cls.model_fields}
        return {**values, **{name: cls._added(name, it) for name, it in added.items()}}

    @classmethod
    def _added(cls, name: str, value: Any) -> Section:
        try:
            field = field_of(cls, name)
        except ConfigError as error:
            raise PydanticCustomError(INNER, "{said}", {"said": str(error)}) from error
        if field is None:
            raise ValueError(f"unknown key {name}")
        usual: Section = field.default
        try:
            return type(usual).model_validate(value)
        except ValidationError as error:
            said = "; ".join(
                f"algo.{'.'.join(map(str, (name, *it['loc'])))}: "
                f"{it['msg'].removeprefix('Value error, ')} (got {it['input']!r:.80})"
                for it in error.errors()
            )
            raise PydanticCustomError(INNER, "{said}", {"said": said}) from error

    @field_validator("behavior_correction", mode="before")
    @classmethod
    def _default_type(cls, value: Any) -> Any:
        """Apply a table without `type` to the default correction."""
        return {"type": "mask", **value} if is_mapping(value) else value

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, loss: str) -> str:
        return named_or_function(loss, LOSSES)

    @field_validator("advantage")
    @classmethod
    def _named_advantage(cls, advantage: str | None) -> str | None:
        if advantage is not None and not is_function_path(advantage):
            raise ValueError("expected a function as module:function")
        return advantage

    @model_validator(mode="after")
    def _consistent(self) -> AlgoConfig:
        self._consistent_loss()
        self._consistent_advantage()
        self._consistent_scale()
        self._consistent_critic()
        limit = self.reward.overlong_limit or self.max_tokens
        if (self.reward.overlong_buffer or 0) > limit:
            raise ValueError(
                f"reward.overlong_buffer {self.reward.overlong_buffer} exceeds max_tokens {limit}, "
                "the limit where reward.overlong_limit is not set"
            )
        return self

    @property
    def whitening(self) -> WhitenConfig:
        """Return the whitening of advantages; a critic's batch_std is one over tokens."""
        if self.baseline == "critic" and self.scale == "batch_std":
            return WhitenConfig(over="tokens")
        return self.whiten

    @property
    def in_group(self) -> bool:
        """Return whether the only episode of a group has advantage 0."""
        if self.advantage is not None:
            return False
        return self.baseline in ("mean", "leave_one_out", "length_weighted") or self.scale in (
            "group_std",
            "leave_one_out_std",
        )

    def conflicts(self, config: Sections) -> Iterator[str]:
        rate = config.of(TrainerConfig).critic_learning_rate
        if rate is not None and self.baseline != "critic":
            yield (
                f"trainer.critic_learning_rate {rate} without a "
                f"critic: algo.baseline is {self.baseline!r}; leave it out, or use baseline critic"
            )

    @property
    def wanted_terms(self) -> Sequence[str]:
        """Return the keys that are on and belong to a term of the objective, in the order in which
        the terms are added. The keys name the terms: one that is not installed is an error."""
        on = {
            "kl": self.kl.coef,
            "teacher": self.teacher.models,
            "positive_nll": self.positive_nll,
            "entropy_coef": self.entropy_coef,
            "covariance": self.covariance.rule != "none",
        }
        return [name for name, value in on.items() if value]

    @property
    def uses_every_row(self) -> bool:
        """Return whether the loss has a term for tokens whose advantage is 0."""
        of_kl = self.kl.coef and not self.kl_in_reward
        return bool(of_kl or self.entropy_coef or self.positive_nll) or self.covariance.rule == "kl"

    @property
    def needs_batch(self) -> bool:
        """Return whether the loss of a token depends on all proximal log-probs of the batch."""
        moment = self.behavior_correction.type == "moment_mask" and not self.naive
        taught = bool(self.teacher.models) and self.teacher.placement == "reward"
        return moment or self.covariance.rule != "none" or self.kl_in_reward or taught

    @property
    def kl_in_reward(self) -> bool:
        """Return whether the divergence from a reference is a part of the advantages."""
        return bool(self.kl.coef) and self.kl.placement != "loss"

    def _consistent_loss(self) -> None:
        if self.loss == "gspo" and self.ratio == "token":
            raise ValueError('loss gspo has a ratio per row; with ratio "token" it is ppo')

    def _consistent_advantage(self) -> None:
        if self.advantage is not None and self.reward.parts:
            raise ValueError(
                f"reward.parts has an advantage for each part, and advantage {self.advantage!r} "
                "computes them by itself: leave one out"
            )
        if self.advantage is not None and self.whiten.over == "episodes":
            raise ValueError(
                f"whiten.over 'episodes' whitens advantages of episodes, and advantage "
                f"{self.advantage!r} returns those of tokens: use tokens, or none"
            )
        if self.kl.coef:
            return
        used = {"reference", "refresh_every", "ema"}
        idle = [
            f"kl.{key}"
            for key, value in self.kl
            if key not in used and value != default(self.kl, key)
        ]
        if idle:
            raise ValueError(
                f"{', '.join(idle)} does nothing unless kl.coef is above 0, and it is 0.0: leave "
                "it out, or change kl.coef"
            )

    def _consistent_scale(self) -> None:
        if self.baseline in ("none", "batch_mean") and self.scale == "leave_one_out_std":
            raise ValueError(
                f"baseline {self.baseline!r} with scale 'leave_one_out_std' has no meaning; use "
                "leave_one_out"
            )
        if self.baseline == "none" and self.scale == "group_std":
            raise ValueError("baseline 'none' with scale 'group_std' has no meaning; use batch_std")
        if self.std.of == "centred" and self.scale == "leave_one_out_std":
            raise ValueError(
                "std.of 'centred' has no meaning with scale 'leave_one_out_std', the deviation of "
                "other episodes' rewards: leave it out"
            )

    def _consistent_critic(self) -> None:
        if self.baseline != "critic":
            return
        if self.scale not in ("none", "batch_std"):
            raise ValueError(
                f"baseline 'critic' with scale {self.scale!r} has no meaning: a critic judges "
                "tokens, not episodes of a group; use batch_std or none"
            )
        if self.shuffle_advantages:
            raise ValueError(
                "shuffle_advantages permutes advantages of episodes; baseline 'critic' gives "
                "every token its own: use another baseline for the negative control"
            )
        if self.whiten.over == "episodes" or (self.whiten.over != "none" and self.scale != "none"):
            raise ValueError(
                f"baseline 'critic' with whiten.over {self.whiten.over!r} and scale "
                f"{self.scale!r}: its advantages are those of tokens; use tokens with scale none"
            )
        if self.reward.parts:
            raise ValueError("baseline 'critic' learns one return: leave reward.parts out")
        if self.kl.placement == "token":
            raise ValueError("baseline 'critic' sums rewards itself: use kl.placement reward")
        if not self.teacher.reward_coef:
            raise ValueError(
                "baseline 'critic' does nothing with teacher.reward_coef 0, which leaves out the "
                "environment's rewards: use another baseline, or raise teacher.reward_coef"
            )
