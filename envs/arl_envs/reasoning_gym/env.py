"""A dataset of reasoning-gym as an environment: a question, a reply, a reward."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agentgym_rl import ConfigError, Env, EnvError, InfraError, Message, Step, Task, Verifier
from agentgym_rl.core import SeededTasks, Split, checked_task
from agentgym_rl.gym.tool_env import listed, reply_to, text_of
from agentgym_rl.gym.verifier import Called

from .datasets import check
from .extract import final_answer
from .screen import EVALUATED, may_be_scored

SYSTEM_PROMPT = "Solve the problem. Put only the final answer in <answer></answer>."
RIGHT = 0.99
"""The score from which an answer counts as right; the package gives lower scores to many wrong
ones."""
GENERATE_TIMEOUT_S = 30.0
SLOWNESS = 20
"""The multiple of the question's generation time that a scorer has, on top of its time limit: the
question is generated again, perhaps on a busier machine."""

Reward = Literal["binary", "raw"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The question of the present episode."""

    task_id: str
    seed: int
    question: str
    answer: str | None
    took_s: float


class DatasetTasks(SeededTasks):
    """The endless tasks of a dataset, one per seed. The environment generates the question of a
    seed; no question belongs to both splits, by the hash of the question."""

    def __init__(self, dataset: str, split: Split, *, seed: int) -> None:
        super().__init__(split, seed=seed)
        self._dataset = dataset

    def __getitem__(self, index: int, /) -> Task:
        task = super().__getitem__(index)
        data = {"dataset": self._dataset}
        return dataclasses.replace(task, id=f"{self._dataset}-{task.id}", data=data)


class ReasoningGymEnv(Env):
    r"""A question of `dataset`; the reply's last <answer></answer> or \boxed{} is scored.

    The reward is 1 if the package's scorer gives 0.99 or more, else 0; with `reward="raw"` it is
    the score itself, which is positive for many wrong answers. `timeout_s` bounds the scorer: an
    answer that twice takes longer gets 0 and is counted (`verifier_timeouts`). `config` and further
    options are the dataset's own.

    Raises:
        ConfigError: reasoning-gym is missing, or has no such dataset or option.
    """

    uses_verifier = True
    max_turns = 1
    step_timeout_s = 300.0  # the first question waits for the package's import

    def __init__(
        self,
        *,
        dataset: str = "",
        config: Mapping[str, Any] | None = None,
        reward: Reward = "binary",
        timeout_s: float = 5.0,
        **options: Any,
    ) -> None:
        if reward not in get_args(Reward):
            raise ConfigError(f"reward: got {reward!r}, allowed: {', '.join(get_args(Reward))}")
        self._dataset = dataset
        self._config = {**(config or {}), **options}
        check(dataset, self._config)
        self._raw = reward == "raw"
        self._timeout_s = timeout_s
        self._random = random.Random()
        self._own = Verifier(None)
        self._verifier: Any = self._own
        self._entry: Entry | None = None

    @classmethod
    def task_source(
        cls,
        split: Split,
        *,
        seed: int,
        dataset: str = "",
        config: Mapping[str, Any] | None = None,
        reward: Reward = "binary",
        timeout_s: float = 5.0,
        **options: Any,
    ) -> DatasetTasks:
        """Return the endless tasks of `split`."""
        check(dataset, {**(config or {}), **options})
        return DatasetTasks(dataset, split, seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start with the question of `options["task"]`, or a training question of `seed`.

        Raises:
            EnvError: unknown options, a task of another dataset, or no question of the split.
            InfraError: the verifier pool failed.
        """
        options = dict(options or {})
        task, verifier = options.pop("task", None), options.pop("verifier", None)
        if options:
            raise EnvError(f"unknown reset options {sorted(options)}; allowed: task, verifier")
        self._verifier = verifier or self._own
        if task is None:
            seed = self._random.getrandbits(53) if seed is None else seed
            task = Task(id=f"{self._dataset}-seed-{seed}", seed=seed)
        self._check(task)
        self._entry = await self._entry_of(task)
        messages: list[Message] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": self._entry.question},
        ]
        return messages, {"task_id": task.id}

    async def step(self, action: Message) -> Step:
        """Score the reply, and end the episode.

        Raises:
            EnvError: there is no episode.
            InfraError: the scorer crashed; the score of the answer is unknown.
        """
        entry, self._entry = self._entry, None
        if entry is None:
            raise EnvError("step without an episode: call reset first")
        answer = final_answer(text_of(action))
        score, verdict, detail = await self._judge(entry, answer)
        reward = score if self._raw else float(score >= RIGHT)
        info: dict[str, Any] = {
            "task_id": entry.task_id,
            "verifier": verdict,
            "verifier_detail": detail,
            "reward_components": {"score": score},
            "metrics": {"verifier_timeouts": float(verdict in ("timeout", "memory"))},
            "stop_reason": "answer",
        }
        calls = action.get("tool_calls")
        replies = [reply_to(call, "error: there are no tools") for call in listed(calls or [])]
        if replies:
            info["tool_errors"] = [reply["content"] for reply in replies]
        return Step(replies, reward, True, False, info)

    async def close(self) -> None:
        await self._own.close()

    def solve(self) -> Sequence[Message] | None:
        """Return the right answer; None for the datasets that have only scorers."""
        if self._entry is None or self._entry.answer is None:
            return None
        return [{"role": "assistant", "content": f"<answer>{self._entry.answer}</answer>"}]

    async def _entry_of(self, task: Task) -> Entry:
        called = await self._verifier.call(
            "arl_envs.reasoning_gym.inside:entry",
            self._dataset,
            self._config,
            task.seed,
            task.split,
            timeout_s=GENERATE_TIMEOUT_S,
        )
        if called.status == "error":
            raise EnvError(f"{self._dataset} could not make a question: {called.error}")
        if called.status != "done":
            raise InfraError(f"{self._dataset}, making a question: {_what_happened(called)}")
        seed, question, answer = called.value
        return Entry(task.id, seed, question, answer, called.ms / 1000)

    async def _judge(self, entry: Entry, answer: str | None) -> tuple[float, str, str]:
        """Return (score, verdict, detail)."""
        if answer is None:
            return 0.0, "unparseable", "no <answer></answer> or \\boxed{}, or an empty one"
        if entry.answer is not None and answer == entry.answer.strip():
            return 1.0, "ok", ""
        if not may_be_scored(self._dataset, answer):
            return 0.0, "unparseable", "not of the characters and words that an answer is made of"
        called = await self._verifier.call(
            "arl_envs.reasoning_gym.inside:score",
            self._dataset,
            self._config,
            entry.seed,
            entry.question,
            answer,
            timeout_s=self._timeout_s + SLOWNESS * entry.took_s,
            fresh=self._dataset in EVALUATED,
        )
        if called.status in ("timeout", "memory"):
            return 0.0, called.status, _what_happened(called)
        if called.status != "done" or called.value is None:
            raise InfraError(f"{self._dataset}, scoring: {_what_happened(called)}")
        score, raised = called.value
        if raised or not math.isfinite(score):
            return 0.0, "unparseable", raised or f"the scorer said {score}"
        return score, "ok" if score >= RIGHT else "wrong", ""

    def _check(self, task: object) -> None:
        task = checked_task(task)
        dataset = task.data.get("dataset", self._dataset)
        if dataset != self._dataset:
            raise EnvError(f"task {task.id} is of {dataset}, not {self._dataset}")


def _what_happened(called: Called) -> str:
    if called.status == "done":
        return "the same seed gave another question than before"
    return f"{called.status} ({called.error or 'no words'}; {called.attempts} attempts)"
