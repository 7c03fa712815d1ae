"""The criteria, a file per subject, in the order in which they are judged."""

from arl_check.report import Criterion

from . import endings, isolation, messages, protocol, rewards, seeds, tasks

CRITERIA: tuple[Criterion, ...] = (
    protocol.signature,
    tasks.tasks,
    protocol.reset_tuple,
    protocol.step_tuple,
    protocol.reward,
    protocol.bools,
    protocol.info,
    protocol.spec,
    messages.first_messages,
    messages.tools,
    messages.observations,
    messages.tool_results,
    messages.new_messages,
    messages.nothing_mutated,
    tasks.task_source,
    tasks.task_data,
    seeds.global_rng,
    seeds.seed_determinism,
    seeds.seeds_differ,
    tasks.splits_disjoint,
    seeds.replay,
    seeds.reset_again,
    endings.ends,
    endings.truncation,
    endings.step_before_reset,
    endings.step_after_done,
    endings.close,
    protocol.malformed_actions,
    isolation.isolation,
    isolation.event_loop,
    isolation.cancel,
    rewards.pays,
    rewards.gold,
    rewards.no_op,
    rewards.echo,
    rewards.call_everything,
    rewards.bad_answers,
)
"""All criteria; those that a criterion needs come before it."""
