"""The section `rollout`: the play and admission of episodes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .section import Anytime, Fitted, OnResume, Section


class RolloutConfig(Section):
    """The play and admission of episodes. B = `groups_per_batch`; counts are groups."""

    groups_per_batch: int = Field(default=8, ge=1)
    """The number B of groups (tasks) in a training batch."""
    group_size: int = Field(default=8, ge=1)
    """The number of episodes of each task, compared with each other; 1 needs an `algo` that
    compares over the batch."""
    max_staleness: int = Field(default=2, ge=0)
    """The bound η: a batch trains no token older than η policy versions; 0 is synchronous."""
    lookahead: int | None = Field(default=None, ge=0)
    """The versions η_target ≤ η for which groups are admitted ahead of the trainer (default: η)."""
    stale_policy: Literal["drop", "train"] = "drop"
    """The treatment of a group older than η: dropped and counted, or trained anyway."""
    max_concurrent: OnResume[int | None] = Field(default=None, ge=1)
    """The number of concurrent groups (default 2·B); with `adaptive`, the maximum (default: the
    number that the staleness bound admits, (lookahead + 1)·B, which it never exceeds)."""
    concurrency: OnResume[Literal["fixed", "adaptive"]] = "fixed"
    """The number of concurrent groups: `max_concurrent`, or adapted to engines and trainer."""
    start_concurrent: OnResume[int | None] = Field(default=None, ge=1)
    """The initial number of concurrent groups with `adaptive` (default 2·B, or the maximum)."""
    min_concurrent: OnResume[int | None] = Field(default=None, ge=1)
    """The minimum number of concurrent groups with `adaptive` (default 1)."""
    interrupt: OnResume[Literal["keep", "recompute", "abort", "wait"]] = "keep"
    """The treatment of requests in flight at a weight update: they continue with their KV cache, or
    with a KV cache recomputed under the new weights, or are aborted and resubmitted with their
    tokens; or the update waits for them. No mode loses a sampled token or is visible to agents."""
    temperature: float = Field(default=1.0, gt=0)
    """The sampling temperature of training episodes; recorded with each token."""
    max_tokens: Fitted[int] = Field(default=48, ge=1)
    """The longest reply of one turn, in tokens."""
    episode_timeout_s: Anytime[float | None] = Field(default=None, gt=0)
    """The time limit of an episode; a longer one is dropped, not scored. Unset: no limit, as long
    as the episode makes progress."""
    idle_timeout_s: Anytime[float] = Field(default=600.0, gt=0)
    """The longest time in which an episode neither waits for a reply nor begins or ends a step."""
    turn_timeout_s: Anytime[Fitted[float]] = Field(default=30.0, gt=0)
    """The longest time in which a reply gets no token, and its engine sends none to others either;
    a reply that alone gets none ends after 20 times that."""
    tool_timeout_s: OnResume[float | None] = Field(default=None, gt=0)
    """The time limit of `env.step` and `env.reset`; default: the environment's own limit
    (`Env.step_timeout_s`, 10 s for most)."""
    max_retries: Anytime[int] = Field(default=2, ge=0)
    """The number of times that an episode is played again after an infrastructure failure."""
    shuffle: bool = True
    """The switch to shuffle tasks of a finite source in each epoch, by `seed`; if off, the order is
    always the source's own."""
    max_input_tokens: int | None = Field(default=None, ge=1)
    """The longest first prompt, messages and tools, in tokens; longer tasks are not played, but
    dropped and counted as `too_long`."""
    should_accept: str = "all"
    """The filter of finished groups: `all`, `mixed_rewards`, or module:function over a group's
    trajectories."""
    max_rejected: OnResume[int] = Field(default=1000, ge=1)
    """The number of groups in a row that `should_accept` may refuse, or that may be too long,
    before the run stops with an error; and the number of tasks in a row with weight 0."""

    workers: Anytime[int] = Field(default=0, ge=0)
    """The number of processes that play episodes, each with its own gateway, environments and
    sandboxes; 0: `arl train` itself plays them."""
    worker_cpus: Anytime[int] = Field(default=1, ge=1)
    """The CPUs of each worker with its environments and sandboxes: the threads that libraries like
    numpy may take, and the CPUs that a cluster reserves."""
    max_restarts: Anytime[int] = Field(default=3, ge=0)
    """The maximum number of restarts of each lost worker; the last worker to be lost for good ends
    the run."""

    @property
    def patience_s(self) -> float:
        """Return the time after which an episode, or a process that plays some, counts as stuck."""
        return self.episode_timeout_s or self.idle_timeout_s

    @property
    def admitted_groups(self) -> int:
        """Return the number of concurrent groups at the start of a run."""
        if self.concurrency == "adaptive":
            usual = max(min(2 * self.groups_per_batch, self.most_groups), self.min_concurrent or 1)
            return self.start_concurrent or usual
        return self.max_concurrent or 2 * self.groups_per_batch

    @property
    def most_groups(self) -> int:
        """Return the maximum number of concurrent groups."""
        if self.concurrency == "fixed":
            return self.admitted_groups
        bound = (self.target_staleness + 1) * self.groups_per_batch
        return min(self.max_concurrent or bound, bound)

    @property
    def target_staleness(self) -> int:
        """Return `lookahead`, or its default η."""
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
