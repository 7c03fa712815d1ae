"""The warnings about the metrics of a run: about cut replies, and about a policy that is broken,
repeats itself or moves too far. Each warning names the keys to change."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from agentgym_rl.config import Config
from agentgym_rl.evaluate.evaluate import CUT_SHARE

log = logging.getLogger(__name__)


class MetricWarnings:
    """The receiver that warns about one run; each kind of warning is logged once. The metrics are
    averaged over the last few batches."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_TOGETHER)
        self._first_reward = math.nan
        self._warned: set[str] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check the metrics of a batch; those of an evaluation, which have other names, are left
        out."""
        if "reward/mean" not in metrics:
            return
        if step == 0 or math.isnan(self._first_reward):
            self._first_reward = metrics["reward/mean"]
        if why := self._broken(metrics):
            self._warn(
                "broken",
                f"step {step}: {why}. Training has probably broken the policy: lower trainer."
                f"learning_rate (it is {metrics.get('lr', math.nan):g} here) and begin again",
            )
        self._seen.append((step, metrics))
        if len(self._seen) == _TOGETHER:
            steps = f"steps {self._seen[0][0]} to {step}"
            self._check_replies(steps)
            self._check_policy(steps)

    def close(self) -> None:
        """Do nothing: no warning is pending."""

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("%s", text)

    def _broken(self, metrics: Mapping[str, float]) -> str:
        """Return the reason to believe that training has broken the policy; "" if there is none.
        Successful learning lowers the entropy, too, but then the reward rises; and near zero the
        entropy of a batch is noise."""
        entropy, reward = metrics.get("policy/approx_entropy", math.nan), metrics["reward/mean"]
        before, paid = self._mean("policy/approx_entropy"), self._mean("reward/mean")
        if self._seen:
            since = f"{before:.2g} to {entropy:.2g} since step {self._seen[0][0]}"
            moved = f"the policy's entropy went from {since}"
            if before >= _SURE and entropy < before / 5 and reward <= paid:
                return f"{moved}, and the reward did not rise ({paid:.3g} to {reward:.3g})"
            if entropy > max(3 * before, before + 1.0) and reward < paid:
                return f"{moved}, and the reward fell ({paid:.3g} to {reward:.3g})"
        if (mismatch := metrics.get("mismatch/mean_abs", math.nan)) > _MOVED:
            return (
                f"trainer and engine differ by {mismatch:.3g} nats in the log-prob of a token, on "
                "average (mismatch/mean_abs)"
            )
        return ""

    def _check_replies(self, steps: str) -> None:
        """Warn of replies that were cut."""
        turns, cut = self._mean("episode/turns"), self._mean("episode/length_turns")
        if turns > 0 and cut / turns > CUT_SHARE:
            self._warn(
                "cut",
                f"{steps}: {cut / turns:.0%} of the replies were cut at rollout.max_tokens or at "
                "the end of the context (episode/length_turns), so the model learns from replies "
                "that it could not finish: raise rollout.max_tokens and engine.max_model_len, or "
                "reward short replies",
            )
        if (outgrown := self._mean("episode/overflows")) > CUT_SHARE:
            self._warn(
                "outgrown",
                f"{steps}: {outgrown:.0%} as many requests as episodes had no room left in the "
                "context (episode/overflows): raise engine.max_model_len, or play fewer turns",
            )

    def _check_policy(self, steps: str) -> None:
        """Warn of a policy that repeats itself, or that moves too far in a batch."""
        entropy, reward = self._mean("policy/approx_entropy"), self._mean("reward/mean")
        if entropy < _REPEATS and reward <= self._first_reward:
            self._warn(
                "entropy",
                f"{steps}: the policy says the same every time (entropy {entropy:.2g} nats a "
                f"token) and its reward has not risen ({self._first_reward:.3g} to {reward:.3g}), "
                "so there is nothing to compare: raise rollout.temperature or algo.entropy_coef, "
                "or begin again with a lower trainer.learning_rate",
            )
        far = [
            f"{name} {value:.3g}, {usual}"
            for name, (low, high, usual) in _USUAL.items()
            if not low <= (value := self._mean(name)) <= high and not math.isnan(value)
        ]
        if far:
            self._warn(
                "far",
                f"{steps}: the policy moves too far within a batch, or its data is too old "
                f"({'; '.join(far)}): lower trainer.learning_rate, trainer.epochs, "
                "trainer.num_minibatches or rollout.max_staleness",
            )

    def _mean(self, name: str) -> float:
        """Return the mean of a metric over the batches that have it; NaN if none has."""
        found = (metrics.get(name, math.nan) for _, metrics in self._seen)
        known = [value for value in found if math.isfinite(value)]
        return sum(known) / len(known) if known else math.nan


def open_warnings(config: Config, run_dir: Path) -> MetricWarnings:
    """Open the warnings about a run."""
    return MetricWarnings()


_TOGETHER = 3
"""The number of batches that are judged together."""
_SURE = 0.2
"""The entropy, in nats a token, below which a policy repeats itself and its entropy is noise."""
_REPEATS = 0.01
"""The entropy, in nats a token, below which a policy is deterministic; successful runs reach 0.002,
with a high reward."""
_MOVED = 0.5
"""The limit of the mismatch, in nats a token: working runs with stale data stay below 0.1, and
broken ones begin at 0.6."""
_USUAL = {
    "policy/approx_kl": (-math.inf, 1.0, "usually below 0.06"),
    "policy/clip_fraction": (0.0, 0.3, "usually below 0.04"),
    "policy/behavior_weight_masked": (0.0, 0.3, "usually below 0.01"),
    "mismatch/sampling_importance_ratio": (0.7, 1.4, "usually 0.98 to 1.01"),
}
"""The limits of metrics, and their range in 40-batch runs that learned with the default objective
(broken ones: a KL of 50 to 400, a ratio of 0.2 to 1.5). Shares of clipped and dropped tokens have
wide limits: other losses and corrections clip and drop more."""
