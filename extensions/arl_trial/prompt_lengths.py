"""The lengths of first prompts, checked against the model's context before anything is started.

A prompt is measured as the environment gives it, messages and tools in the model's chat template.
The text that an agent adds is not known yet: an episode that it makes too long is detected when it
is played, and left out in the same way (`Outcome.TOO_LONG`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentgym_rl.config import Config, RolloutConfig, SandboxConfig
from agentgym_rl.core import (
    ConfigError,
    Split,
    Task,
    TaskSource,
    length_of,
    text_message,
    text_settings,
)
from agentgym_rl.core.chat import RENDERED
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gym import EnvSpec, Services, make_sandbox
from agentgym_rl.gym.wrappers import StepTimeout, within
from agentgym_rl.models import model_folder
from agentgym_rl.rollout import env_spec, tried

_log = logging.getLogger(__name__)

MOST_TASKS = 1000
"""The most tasks of a split that are measured, in about half a second; they are evenly spaced."""
MOST_ENDLESS = 64
"""The same limit for an endless task source: the environment generates its prompts."""
_LONGEST_S = 10.0
_REPORT_AFTER_S = 2.0
_CLOSE_TIMEOUT_S = 5.0
_MOST_FAILURES = 10
"""The number of tasks without a prompt (their episodes will report the error) after which measuring
stops."""


@dataclass(slots=True)
class Lengths:
    """The lengths of first prompts of one split, in tokens."""

    split: Split
    tasks: TaskSource
    num_tasks: int | None
    """The number of tasks that may be played; None: the source is endless."""
    most: int
    """The number of tasks that are measured."""
    lengths: list[int] = field(default_factory=list[int])
    """The length of each prompt that was measured."""

    @classmethod
    def planned(cls, split: Split, tasks: TaskSource, wanted: int | None = None) -> Lengths:
        """Plan the measurement of the first `wanted` tasks of a split; None: of all."""
        found = length_of(tasks)
        num_tasks = min((n for n in (found, wanted) if n is not None), default=None)
        most = MOST_ENDLESS if found is None else MOST_TASKS
        return cls(split, tasks, num_tasks, most if num_tasks is None else min(most, num_tasks))

    def task(self, number: int) -> Task:
        """Return the task to be measured as number `number`, counted from 0."""
        return self.tasks[number * (self.num_tasks or self.most) // self.most]

    def longer_than(self, limit: int) -> int:
        """Return the number of prompts with more than `limit` tokens."""
        return sum(length > limit for length in self.lengths)

    @property
    def whose(self) -> str:
        """Return a description of the measured prompts for messages."""
        measured = len(self.lengths)
        if measured == self.num_tasks:
            return f"{measured:,} {self.split} prompts"
        of = "" if self.num_tasks is None else f" of {self.num_tasks:,}"
        return f"{measured:,} {self.split} prompts (a sample{of})"


async def check_lengths(
    config: Config, splits: Sequence[Split], say: Callable[[str], None]
) -> None:
    """Warn of first prompts that do not fit the model's context or `rollout.max_input_tokens`, and
    of those that leave little room for a reply. `say` gets progress messages if it takes long.

    Raises:
        ConfigError: no prompt of a split fits, or the chat template does not write the
            environment's tools and `gateway.hidden_tools` forbids to add them.
    """
    folder = model_folder(config.model, config.env.id)
    chat = ChatFormat.load(folder, config.gateway)
    spec, found = env_spec(config.env, config.rollout), list[Lengths]()
    if "eval" in splits and config.eval.num_tasks:
        split = config.eval.split
        evaluated = await spec.read_tasks(split, seed=config.eval.seed)
        found.append(Lengths.planned(split, evaluated, config.eval.num_tasks))
    if "train" in splits:
        trained = await spec.read_tasks("train", seed=config.seed)
        found.append(Lengths.planned("train", trained))
    async with tried(config, None):  # a `reset` that blocks is interrupted
        await _measure(spec, config.sandbox, chat, found, say)
    context = _context(folder, config.own_engine.max_model_len)
    for lengths in found:
        if lengths.lengths:
            _judge(lengths, context, config.rollout, env_id=config.env.id)


async def _measure(
    spec: EnvSpec,
    sandbox: SandboxConfig,
    chat: ChatFormat,
    found: Sequence[Lengths],
    say: Callable[[str], None],
) -> None:
    """Add the lengths of prompts, until all planned ones are measured or it takes too long.

    Raises:
        ConfigError: the chat template does not write the environment's tools, and they may not be
            added.
    """
    env = spec.make()
    sandboxes = None
    if env.needs_sandboxes:  # not started: a `reset` that runs programs fails and is not measured
        sandboxes = make_sandbox(sandbox.id, **sandbox.options)
    options = Services(sandboxes).options(env)
    failures = 0
    began_s = reported_s = time.monotonic()
    places = [(each, number) for each in found for number in range(each.most)]
    try:
        if env.tools:
            chat.check_tools(env.tools)
            chat.say_tools()
        async with asyncio.timeout(_LONGEST_S):
            for each, number in places:
                if env.uses_verifier and length_of(each.tasks) is None:
                    continue  # a generated problem may start processes, as in `reasoning_gym`
                try:
                    task = each.task(number)
                    messages, _ = await env.reset(seed=task.seed, options={"task": task, **options})
                    each.lengths.append(len(chat.prompt(messages, env.tools or None)))
                except StepTimeout as error:
                    text = "%s: it is not known how many prompts are too long: %s"
                    _log.warning(text, spec.id, error)
                    return
                except (Exception, SystemExit) as error:  # foreign code, or the template
                    _log.debug("a prompt of %s cannot be measured: %r", spec.id, error)
                    failures += 1
                else:
                    if chat.holds_rendered([text_message(message) for message in messages]):
                        raise ConfigError(f"{spec.id}, {each.split} task {number}: {RENDERED}")
                now_s = time.monotonic()
                if now_s - reported_s > _REPORT_AFTER_S:
                    reported_s = now_s
                    say(f"measuring prompts: {number + 1:,} of {each.most:,} {each.split} tasks")
                if failures == _MOST_FAILURES or now_s - began_s > _LONGEST_S:
                    break
    except TimeoutError:
        _log.debug("env.reset of %s is too slow to measure its prompts", spec.id)
    finally:
        with contextlib.suppress(Exception, SystemExit):  # `player.specimen` has warned already
            await within(_CLOSE_TIMEOUT_S, env.close())


def _judge(
    found: Lengths, context: tuple[int, str], rollout: RolloutConfig, *, env_id: str
) -> None:
    """Warn of the number of prompts that do not fit.

    Raises:
        ConfigError: no prompt fits.
    """
    room, key = context
    longest, configured = room - 1, rollout.max_input_tokens
    if configured is not None and configured < longest:
        longest, key = configured, f"rollout.max_input_tokens {configured:,}"
    advice = f"the prompts have {min(found.lengths):,} to {max(found.lengths):,} tokens"
    too_long = found.longer_than(longest)
    if too_long == len(found.lengths):
        hint = "; --eval.num_tasks=0 evaluates on none" if found.split == "eval" else ""
        raise ConfigError(
            f"{env_id}: none of {found.whose} fits {key}, which must hold the first prompt "
            f"and at least one token of a reply; {advice}: raise the limit or shorten them{hint}"
        )
    if too_long:
        _log.warning(
            "%s: %s of %s do not fit %s: they are not played, and count in no mean, but as "
            "too_long; %s: raise the limit or shorten them",
            env_id, f"{too_long:,}", found.whose, key, advice,
        )  # fmt: skip
    reply = rollout.max_tokens
    tight = found.longer_than(room - reply) - found.longer_than(longest)
    if tight > 0 and reply < room:
        _log.warning(
            "%s: %s of %s leave less than rollout.max_tokens %s of the %s tokens of the context "
            "for the reply, which is cut there",
            env_id, f"{tight:,}", found.whose, f"{reply:,}", f"{room:,}",
        )  # fmt: skip


def _context(folder: Path, wanted: int) -> tuple[int, str]:
    """Return the longest conversation, in tokens, as far as it is known before an engine runs, and
    the limit's origin: the key `wanted`, or the model in `folder`."""
    positions = text_settings(folder).get("max_position_embeddings")
    if isinstance(positions, int) and 1 < positions < wanted:
        return positions, f"the {positions:,} positions of the model"
    return wanted, f"engine.max_model_len {wanted:,}"
