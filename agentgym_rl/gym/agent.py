"""The agent contract: a program written against the OpenAI client SDK."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from agentgym_rl.core import Task

from .env import Env

if TYPE_CHECKING:  # the SDK takes half a second to import; agents get a ready client
    from openai import AsyncOpenAI


class Agent(ABC):
    """A program that plays one episode: it queries the model and steps the environment until the
    episode ends.

    `env.reset()` has been prepared with the task: calling it returns the first messages.
    The framework sums the rewards from `Step.reward`; an agent returns nothing.

    >>> from agentgym_rl import Agent
    >>> class OneTurn(Agent):
    ...     async def run(self, env, client, *, model, task):
    ...         messages, _ = await env.reset()
    ...         chat = client.chat.completions
    ...         reply = await chat.create(model=model, messages=messages, tools=env.tools)
    ...         await env.step(reply.choices[0].message.model_dump(exclude_none=True))
    """

    @abstractmethod
    async def run(self, env: Env, client: AsyncOpenAI, *, model: str, task: Task) -> None:
        """Play `task` in `env`, sampling from `client` under the name `model`."""
