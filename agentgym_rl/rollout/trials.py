"""The trials that installed packages register: they try the user's code before a run starts
anything, and may watch it while the run lasts (`agentgym_rl.trials`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from agentgym_rl.config import Config
from agentgym_rl.core import Split, extension_names, load_extension

TRIALS = "trials"
Trial = Callable[[Config, Split], AbstractAsyncContextManager[None]]
"""A function of a checked configuration and the split that is played first. Its context is entered
before anything starts, and is open until the run has ended.

Raises:
    ConfigError: the run would fail; the message has the reason.
"""


@asynccontextmanager
async def tried(config: Config, split: Split) -> AsyncGenerator[None]:
    """Open the registered trials of a run."""
    async with AsyncExitStack() as stack:
        for name in extension_names(TRIALS):
            trial: Trial = load_extension(TRIALS, name)
            await stack.enter_async_context(trial(config, split))
        yield
