"""The audit of recorded log-probs, which are computed again with the weights of each version, and
of recorded rewards, which are compared with those that were trained.

The trainer's computation is in `recompute.py`, the rule for a verdict in `verdict.py`.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, FloatArray, Interrupt, WeightsError
from agentgym_rl.models import model_of_run
from agentgym_rl.storage import EpisodeReader, config_of
from agentgym_rl.storage.episode_reader import Reward

from .diagnosis import OnProgress, Recompute, diagnose
from .tokens import Index, Tokens
from .verdict import (
    THRESHOLDS,
    Evidence,
    Gaps,
    Rule,
    by_place,
    by_version,
    distances,
    failing,
    failures,
    summary,
)

_WORST_SHOWN = 10
_CONTROL_TOKENS = 512
"""The number of tokens of each version that are also recomputed under the version before."""
_SHARP = 0.05
"""The share of these tokens that must exceed the limit for a wrong version to be noticed. A small
share is enough: a wrong label is wrong for many tokens in a row, and many tokens are nearly certain
under any version."""


def audit(
    run: Path,
    *,
    threshold: float | None = None,
    untrained: bool = False,
    model: str = "",
    on_progress: OnProgress = lambda count: None,
) -> dict[str, Any]:
    """Recompute every trained token of a run under the version recorded with it.

    Log-probs are those of the trainer's forward at the recorded temperature. A run that has not
    finished is audited as far as it got. The report is the JSON object of `arl audit --json`.

    Args:
        threshold: The allowed |Δ log-prob|; None: by the engine's dtype (`THRESHOLDS`).
        untrained: Include the episodes of groups that wait or were dropped.
        model: The place of the model that the run began with, if it is not where it was.
        on_progress: Called with the number of tokens recomputed since its previous call.

    Raises:
        ConfigError: there is no run, nothing is trained yet, or no versions were kept.
        TrainerError: the model cannot be loaded, or a record cannot have been trained.
    """
    config = load_config(config_of(run, f"arl audit {run}"))
    rule = _rule(config.own_engine.dtype, config.rollout.interrupt, threshold)
    with contextlib.closing(EpisodeReader(run / "episodes.db")) as reader:
        tokens = Tokens.collect(reader, reader.episode_ids(untrained=untrained))
        _check(run, tokens, untrained=untrained)
        # torch, not for the mistakes above
        from .recompute import open_recomputer

        with open_recomputer(
            config.trainer,
            model_dir=model_of_run(config.model, config.env.id, run, given=model),
            versions_dir=run / "weights",
            routing_replay=config.own_engine.routing_replay,
        ) as recomputer:
            keeps_kv = rule.interrupt == "keep"
            recompute = Recompute(tokens, reader, recomputer, on_progress, keeps_kv=keeps_kv)
            evidence, control, rounding = _recompute_all(recompute, rule)
            if threshold is None:
                rule = rule.allowing(rounding)
            broken = failing(evidence, rule)
            diagnosis = diagnose(recompute, evidence, rule, broken) if len(broken) else None
        wrong = wrong_rewards(reader, by_group=config.rollout.group_reward is not None)
        steps = {"steps": config.steps, "steps_published": reader.steps_published}
    sentences = [*failures(evidence, rule, broken), *wrong]
    report = {
        **{"run": str(run), **steps},
        **_report(evidence, rule, broken),
        **{"passed": not sentences, "failures": sentences, "rounding": rounding},
    }
    return {**report, "control": _control(control, rule), "diagnosis": diagnosis}


def _rule(
    dtype: Literal["float32", "bfloat16"], interrupt: Interrupt, threshold: float | None
) -> Rule:
    allowed = THRESHOLDS[dtype] if threshold is None else threshold
    if not (allowed > 0 and math.isfinite(allowed)):
        raise ConfigError(f"--threshold {threshold}: expected a number above 0, like 1e-3")
    return Rule(interrupt, dtype, allowed)


def _check(run: Path, tokens: Tokens, *, untrained: bool) -> None:
    """Raise ConfigError if there are no tokens to recompute, or no weights to recompute with."""
    if not len(tokens):
        more = "" if untrained else "; --all also takes episodes that were not trained"
        raise ConfigError(f"{run} holds no trained token yet: nothing to audit{more}")
    if not any((run / "weights").glob("v-*")):
        raise ConfigError(
            f"no policy version is kept in {run / 'weights'}, and a token is audited with the "
            "weights that sampled it: run again with --weights.keep_versions=all"
        )


def _recompute_all(recompute: Recompute, rule: Rule) -> tuple[Evidence, Gaps, float | None]:
    """Recompute every token under its version; as a control, some under the version before; and
    for a bfloat16 engine some in its dtype, which give the mean |Δ| that rounding makes."""
    tokens = recompute.tokens
    old_kv = rule.old_kv(tokens)
    found = np.full(len(tokens), np.nan, np.float32)
    covered = np.zeros(len(tokens), np.bool_)
    before: dict[int, tuple[Index, FloatArray]] = {}
    problems: dict[int, str] = {}
    rounding: list[Gaps] = []
    for version in np.unique(tokens.version).tolist():
        try:
            recompute.load(version)
        except WeightsError as error:
            problems[version] = str(error)
            continue
        own, later = tokens.of_version(version), tokens.of_version(version + 1)
        found[own], covered[own] = recompute.logprobs(own), True
        if not rule.by_token:
            some = own[:_CONTROL_TOKENS]
            rounding.append(distances(found[some], recompute.rounded(some)))
        sample = later[~old_kv[later]][:_CONTROL_TOKENS]
        before[version + 1] = sample, recompute.logprobs(sample)
    gaps = np.where(covered, distances(tokens.recorded, found), np.nan)
    # Against the recomputed log-probs, not the recorded ones: the control compares two versions.
    control = [distances(found[i], other) for v, (i, other) in before.items() if v not in problems]
    evidence = Evidence(tokens, covered, found, gaps, old_kv, problems)
    mean = float(np.concatenate(rounding).mean()) if rounding else None
    return evidence, np.concatenate([np.zeros(0), *control]), mean


def wrong_rewards(reader: EpisodeReader, *, by_group: bool) -> list[str]:
    """Return a sentence for each batch whose recorded rewards are not those that were trained;
    `by_group`: each episode must have a reward of its group (`rollout.group_reward`)."""
    metrics = reader.step_metrics()
    found: list[str] = []
    for step, groups in reader.batches().items():
        of = {name: reward for group in groups for name, reward in reader.rewards(group).items()}
        rewards = [of[name] for names in groups.values() for name in names if name in of]
        if bare := sum(reward.of_group is None for reward in rewards) if by_group else 0:
            found.append(f"batch {step}: {bare} episodes have no reward of their group in the log")
        if unlike := sum(not math.isclose(r.listed, r.recorded, **_SAME) for r in rewards):
            found.append(f"batch {step}: {unlike} records have another reward than the log's table")
        mean, trained = _mean(rewards), metrics[step].get("reward/mean")
        if trained is not None and not math.isclose(mean, trained, **_SAME):
            found.append(
                f"batch {step}: the mean reward is {mean:g} in the log, and {trained:g} was trained"
            )
    return found


_SAME = {"rel_tol": 1e-6, "abs_tol": 1e-9}


def _mean(rewards: list[Reward]) -> float:
    return sum(reward.recorded for reward in rewards) / max(1, len(rewards))


def _report(evidence: Evidence, rule: Rule, broken: Index) -> dict[str, Any]:
    judged = evidence.gaps[evidence.judged]
    return {
        "interrupt": rule.interrupt,
        "dtype": rule.dtype,
        "threshold": rule.threshold,
        "criterion": "every token" if rule.by_token else "mean of every version",
        **summary(judged),
        "tokens": len(evidence.tokens),
        "coverage": evidence.coverage,
        "p999": float(np.quantile(judged, 0.999, method="higher")) if len(judged) else None,
        "mixed_kv": summary(evidence.gaps[evidence.covered & ~evidence.judged]),
        "places": by_place(evidence),
        "versions": by_version(evidence),
        "worst": [_token(evidence, i) for i in broken[:_WORST_SHOWN].tolist()],
    }


def _token(evidence: Evidence, index: int) -> dict[str, Any]:
    tokens = evidence.tokens
    return {
        "episode": tokens.episode_ids[tokens.episode[index]],
        "row": int(tokens.row[index]),
        "position": int(tokens.position[index]),
        "version": int(tokens.version[index]),
        "temperature": float(tokens.temperature[index]),
        "recorded": float(tokens.recorded[index]),
        "recomputed": float(evidence.recomputed[index]),
        "gap": float(evidence.gaps[index]),
    }


def _control(gaps: Gaps, rule: Rule) -> dict[str, Any]:
    """Report whether a wrong version would be noticed.

    The audit proves little if versions hardly differ.
    """
    found = summary(gaps)
    noticed = float((gaps > rule.token_limit).mean()) if len(gaps) else None
    sharp = noticed is not None and (
        noticed >= _SHARP if rule.by_token else float(gaps.mean()) > rule.threshold
    )
    return {**found, "noticed": noticed, "sharp": sharp}
