"""`rollout`: how episodes are made and admitted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .section import Section


class RolloutConfig(Section):
    """How episodes are made and admitted. B = `groups_per_batch`; counts are groups."""

    groups_per_batch: int = Field(default=8, ge=1)
    """B: groups (tasks) in a training batch."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of each task, compared with each other; 1 needs `algo` to compare in the batch."""
    max_staleness: int = Field(default=2, ge=0)
    """η: a batch trains no token older than this many policy versions; 0 is synchronous."""
    lookahead: int | None = Field(default=None, ge=0)
    """η_target ≤ η: how far ahead of the trainer groups are admitted (default: η)."""
    stale_policy: Literal["drop", "train"] = "drop"
    """What happens to a group older than η: dropped and counted, or trained all the same."""
    max_concurrent: int | None = Field(default=None, ge=1)
    """Groups played at once (default 2·B); where they are adapted, at most (default: what the bound
    on staleness admits, (lookahead + 1)·B, which it never exceeds)."""
    concurrency: Literal["fixed", "adaptive"] = "fixed"
    """Groups at once are `max_concurrent`; or adapted to what engines and trainer do."""
    start_concurrent: int | None = Field(default=None, ge=1)
    """With `adaptive`: groups at once to begin with (default 2·B, or the most there may be)."""
    min_concurrent: int | None = Field(default=None, ge=1)
    """With `adaptive`: groups at once, at least (default 1)."""
    interrupt: Literal["keep", "recompute", "abort", "wait"] = "keep"
    """At a weight update, requests in flight go on with their KV cache, or with it recomputed
    under the new weights, or are aborted and resubmitted with what they have; or the update
    waits for them. No sampled token is lost in any of them, and the agent notices none."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training episodes; recorded with each token."""
    max_tokens: int = Field(default=48, ge=1)
    """Longest reply of one turn, in tokens."""
    episode_timeout_s: float = Field(default=600.0, gt=0)
    """Longest episode; one that takes longer is dropped, not scored."""
    turn_timeout_s: float = Field(default=30.0, gt=0)
    """Longest wait for one reply of the model."""
    tool_timeout_s: float | None = Field(default=None, gt=0)
    """Longest `env.step` (or `env.reset`); default: what the environment itself asks for
    (`Env.step_timeout_s`, 10 s for most)."""
    max_retries: int = Field(default=2, ge=0)
    """Times an episode is played again after an infrastructure failure."""
    shuffle: bool = True
    """Tasks of a finite source come in another order each epoch, by `seed`; if not, always in the
    source's own."""
    max_input_tokens: int | None = Field(default=None, ge=1)
    """Longest first prompt, messages and tools, in tokens; longer tasks are not played, but
    dropped and counted as `too_long`."""
    should_accept: str = "all"
    """`all`, `mixed_rewards`, or module:function over a finished group's trajectories."""
    max_rejected: int = Field(default=1000, ge=1)
    """Groups in a row that `should_accept` may refuse, or that may be too long, before the run
    stops with an error; and tasks in a row that may have weight 0."""

    workers: int = Field(default=0, ge=0)
    """Processes that play episodes, each with a gateway, environments and sandboxes of its own; 0:
    `arl train` itself plays them."""
    worker_cpus: int = Field(default=1, ge=1)
    """CPUs of each worker, its environments and sandboxes included: threads that libraries like
    numpy may take, and what a cluster sets aside."""
    max_restarts: int = Field(default=3, ge=0)
    """Times that each of these is started again after it was lost; the last one to be lost for good
    ends the run."""

    @property
    def admitted_groups(self) -> int:
        """Groups played at once as a run begins."""
        if self.concurrency == "adaptive":
            usual = max(min(2 * self.groups_per_batch, self.most_groups), self.min_concurrent or 1)
            return self.start_concurrent or usual
        return self.max_concurrent or 2 * self.groups_per_batch

    @property
    def most_groups(self) -> int:
        """Groups that are ever played at once."""
        if self.concurrency == "fixed":
            return self.admitted_groups
        bound = (self.target_staleness + 1) * self.groups_per_batch
        return min(self.max_concurrent or bound, bound)

    @property
    def target_staleness(self) -> int:
        """`lookahead`, or its default η."""
        return self.max_staleness if self.lookahead is None else self.lookahead

    @model_validator(mode="after")
    def _consistent(self) -> RolloutConfig:
        if self.target_staleness > self.max_staleness:
            raise ValueError(
                f"lookahead {self.lookahead} exceeds max_staleness {self.max_staleness}"
            )
        self._check_concurrency()
        return self

    def _check_concurrency(self) -> None:
        if self.concurrency == "fixed":
            for key in ("start_concurrent", "min_concurrent"):
                if (value := getattr(self, key)) is not None:
                    raise ValueError(
                        f"{key} {value} is only for concurrency 'adaptive'; with 'fixed', "
                        "max_concurrent groups are played at once"
                    )
            return
        least, first, most = self.min_concurrent or 1, self.admitted_groups, self.most_groups
        if not least <= first <= most:
            raise ValueError(
                f"concurrency 'adaptive' begins with {first} groups at once (start_concurrent), "
                f"and may have {least} (min_concurrent) to {most}, the smaller of "
                f"max_concurrent and (lookahead + 1)·groups_per_batch = "
                f"{(self.target_staleness + 1) * self.groups_per_batch}"
            )
