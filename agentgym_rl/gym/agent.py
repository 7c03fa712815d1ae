"""The agent contract: a program written against the OpenAI client SDK."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from agentgym_rl.core.task import Task

from .env import Env

if TYPE_CHECKING:  # the SDK takes half a second to import; agents get a ready client
    from openai import AsyncOpenAI


class Agent(ABC):
    """A program that plays one episode: it queries the model and steps the env until the end.

    `env.reset()` has been prepared with the task: calling it returns the first messages.
    The framework sums the rewards from `Step.reward`; an agent returns nothing.
    """

    @abstractmethod
    async def run(self, env: Env, client: AsyncOpenAI, *, model: str, task: Task) -> None:
        """Play `task` in `env`, sampling from `client` under the name `model`."""
