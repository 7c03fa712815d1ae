"""The options of the reward environment."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from agentgym_rl import ConfigError
from agentgym_rl.gym.data import Rows
from agentgym_rl.runtime.imports import import_object

Executor = Literal["inline", "thread", "pool"]


@dataclass(frozen=True, slots=True)
class Options:
    """The keyword arguments of the environment (`--env.options.prompt_field=question`).

    Raises:
        ConfigError: an option that cannot work; the message says what can.
    """

    function: str
    """The `module:function`, called as `function(completion, row)`: the text of the reply, and the
    row as its own dictionary. The result is the reward, a number of any size, or a dictionary with
    `reward` and other numbers, which become `reward_components`. The function may be async."""
    data: str | None = None
    """The .jsonl, .json or .parquet file, or a pattern of several; short for `rows.path`."""
    eval_data: str | None = None
    """The same for held-out tasks; short for `rows.eval_path`. Without it a tenth of the prompts,
    chosen by hash, is held out (`rows.eval_fraction`)."""
    rows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The options of `agentgym_rl.gym.data.Rows`, such as `dataset` and `revision`."""
    prompt_field: str = "prompt"
    """The field of the prompt: text, a list of chat messages, or the text parts of one."""
    system_prompt: str = ""
    """The system message for prompts, which are refused if they have one of their own."""
    processor: str | None = None
    """The `module:function` that makes a row another one, a list of several, or None: left out."""
    executor: Executor = "inline"
    """The place where the function runs: on the event loop, for one that takes microseconds or is
    async; in a `thread`, for one that waits for something; or in the killable, locked-down `pool`
    of verifiers, for one that may hang or crash."""
    timeout_s: float = 10.0
    """The longest call. A longer one is a failure of the environment, never a reward of 0. The
    `pool`, which can kill a function, counts from the start in a worker and tries twice: a reply
    that takes too long (or too much memory) both times is worth 0 and counted
    (`verifier_timeouts`)."""

    def __post_init__(self) -> None:
        for name in ("function", "prompt_field"):
            value: Any = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name}: got {value!r}, expected text")
        if not isinstance(self.system_prompt, str):
            raise ConfigError(f"system_prompt: got {self.system_prompt!r}, expected text")
        if self.executor not in get_args(Executor):
            raise ConfigError(
                f"executor: got {self.executor!r}; allowed: {', '.join(get_args(Executor))}"
            )
        limit: Any = self.timeout_s
        number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if not number or not 0 < limit < math.inf:
            raise ConfigError(f"timeout_s: got {limit!r}, expected seconds above 0")
        if not isinstance(self.rows, Mapping):
            raise ConfigError(f'rows: got {self.rows!r}, expected a table such as {{"path": FILE}}')
        if not (self.data or self.eval_data or self.rows):
            raise ConfigError(
                "no data: give --data FILE (.jsonl, .json or .parquet; env.options.data), or a "
                "Hugging Face data set as --env.options.rows.dataset=ID"
            )

    def where(self) -> Rows:
        """Return the rows that are played."""
        return Rows.of_options(self.rows, data=self.data, eval_data=self.eval_data)

    def reward_function(self) -> Callable[[str, dict[str, Any]], Any]:
        """Return the reward function.

        Raises:
            ConfigError: it cannot be imported, or called with a completion and a row.
        """
        found = import_object(self.function)
        if not callable(found):
            raise ConfigError(f"{self.function} is {found!r}, expected a function")
        try:
            inspect.signature(found).bind("completion", {})
        except TypeError as error:
            raise ConfigError(
                f"{self.function} cannot be called as function(completion, row): {error}"
            ) from error
        except ValueError:  # written in C, without a signature
            pass
        if self.executor != "inline" and inspect.iscoroutinefunction(found):
            raise ConfigError(f"{self.function} is async: that works with executor 'inline' alone")
        return found
