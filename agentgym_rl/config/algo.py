"""The section `algo`: the objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from agentgym_rl.core import (
    INNER,
    ConfigError,
    Fitted,
    LossKind,
    Needs,
    ObjectiveKeys,
    Section,
    extension_names,
    field_of,
    is_function_path,
    is_mapping,
    load_extension,
    load_extensions,
    missing_key,
    missing_member,
    named_or_function,
    none_of,
    one_of,
    with_added_keys,
)

from .algo_terms import StdConfig, WhitenConfig
from .corrections import CORRECTIONS, CorrectionConfig, MaskCorrection, kind_of

BASELINES = "baselines"
"""The group of entry points of terms that `algo.baseline` chooses: they compute the advantages."""
if TYPE_CHECKING:
    Baseline = str
else:  # pydantic names the registered ones in its errors
    _OURS = ("none", "mean", "leave_one_out", "length_weighted", "batch_mean")
    Baseline = Literal[(*_OURS, *extension_names(BASELINES))]
_TERMS = "objectives"
"""The group of entry points of the terms that other packages add."""
_FOUND = load_extensions("losses", of=LossKind)
LOSSES: Mapping[str, LossKind] = {
    name: _FOUND[name] for name in sorted(_FOUND, key=lambda name: (_FOUND[name].order, name))
}
"""The registered losses, by name."""
_WITH_RATIO = [name for name, kind in LOSSES.items() if kind.takes_ratio]
"""The losses that take any `algo.ratio`, as do a user's own."""
_OWN_RATIO = [name for name in LOSSES if name not in _WITH_RATIO]
_STD = one_of("group_std", "batch_std", "leave_one_out_std")


def _of_losses(key: str) -> Needs:
    """Return the rule of a key that only some losses have."""
    losses = [name for name, kind in LOSSES.items() if key in kind.keys]
    return Needs(key, "loss", " or ".join(map(repr, losses)), one_of(*losses))


@with_added_keys("algo")
class AlgoConfig(ObjectiveKeys):
    """The objective (formulas and sources: agentgym_rl/algo)."""

    model_config = ConfigDict(extra="allow")
    added_by = f"an entry point of the group agentgym_rl.{_TERMS}"

    needs: ClassVar[Sequence[Needs]] = (
        Needs("loss_options", "loss", "a function (module:function)", none_of(*LOSSES)),
        *map(_of_losses, ("clip_low", "clip_high", "dual_clip", "behavior_clip")),
        Needs("ratio", "loss", f"{', '.join(_WITH_RATIO)} or a function", none_of(*_OWN_RATIO)),
        Needs("behavior_correction", "naive", "false", one_of(False)),
        Needs("std", "scale", "a standard deviation of rewards", _STD),
        Needs("whiten", "whiten.over", "episodes or tokens", none_of("none")),
        Needs("advantage_options", "advantage", "a function (module:function)"),
        *(
            Needs(key, "advantage", "unset (a function has its own)", one_of(None))
            for key in ("baseline", "scale", "std")
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
    behavior_correction: Annotated[SerializeAsAny[CorrectionConfig], CORRECTIONS] = MaskCorrection()
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """The weight of a token in the loss. token: equal for all tokens of the batch; sequence: equal
    for all episodes, shared by their tokens; constant: 1 over `max_tokens`, however long its
    episode is."""
    max_tokens: Fitted[int] = Field(default=192, ge=1)
    """The nominal trained tokens of an episode: the constant of `constant` aggregation."""
    baseline: Baseline = "mean"
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
    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """The γ of turns: a turn's reward counts γ^d for the turn d turns earlier in the same
    conversation."""
    std: StdConfig = StdConfig()
    whiten: WhitenConfig = WhitenConfig()

    @classmethod
    def added_names(cls) -> Sequence[str]:
        """Return the names of the terms that other packages register."""
        return [
            name
            for name in extension_names(_TERMS)
            if name not in cls.model_fields and "." not in name
        ]

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
            raise ValueError(missing_key(f"algo.{name}") or f"unknown key {name}")
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

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, loss: str) -> str:
        if why := missing_member("losses", loss, f"{loss!r} is a loss"):
            raise ValueError(why)
        return named_or_function(loss, [*LOSSES])

    @field_validator("baseline", mode="before")
    @classmethod
    def _known_baseline(cls, baseline: Any) -> Any:
        if why := missing_member(BASELINES, str(baseline), f"{baseline!r} is a baseline"):
            raise ValueError(why)
        return baseline

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
        return self

    @property
    def whitening(self) -> WhitenConfig:
        """Return the whitening of advantages; batch_std is one over tokens, where a term computes
        the advantages of tokens."""
        if self.baseline in extension_names(BASELINES) and self.scale == "batch_std":
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

    @property
    def terms(self) -> dict[str, Section]:
        return {self.baseline: self} if self.baseline in extension_names(BASELINES) else {}

    @property
    def needs_batch(self) -> bool:
        return self.corrects_by_batch

    @property
    def corrects_by_batch(self) -> bool:
        """Return whether the behavior weight of a token depends on all tokens of the batch."""
        return not self.naive and kind_of(self.behavior_correction).needs_batch

    def _consistent_loss(self) -> None:
        if self.loss == "gspo" and self.ratio == "token":
            raise ValueError('loss gspo has a ratio per row; with ratio "token" it is ppo')

    def _consistent_advantage(self) -> None:
        if self.advantage is not None and self.whiten.over == "episodes":
            raise ValueError(
                f"whiten.over 'episodes' whitens advantages of episodes, and advantage "
                f"{self.advantage!r} returns those of tokens: use tokens, or none"
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
