"""The options of the reward environment."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

from agentgym_rl import ConfigError
from agentgym_rl.gym.data import Rows
from agentgym_rl.runtime import import_object

from .judged import Judged, judged

_log = logging.getLogger(__name__)

Executor = Literal["inline", "thread", "pool"]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_COMPLETION, _ROW = "the text of one reply", "the whole row, a dictionary"
_REMEDY = (
    "write def function(completion, row), which gets one completion at a time, in this order, and "
    "read columns from the row, such as row['answer']"
)
_COLUMNS = (
    *("answer", "answers", "ground_truth", "reference", "label", "target", "expected", "gold"),
    *("messages", "question", "prompt", "solution", "data_source", "final_answer", "gold_answer"),
    *("correct_answer", "expected_answer", "golden", "golden_answers", "gt", "ref", "truth"),
)
_BATCHES = (
    *("completions", "prompts", "responses", "rows", "examples", "queries", "labels", "outputs"),
    *("generations", "predictions", "samples", "references", "solutions"),
)
_FAMILIAR = frozenset(
    {
        *("completion", "response", "reply", "output", "text", "generation", "prediction"),
        *("row", "example", "sample", "item", "doc", "record", "data", "fields", "task", "info"),
        *("c", "r"),
    }
)
"""The names of parameters that mean the reply or the row; other names are logged once."""
_THOUGHTS = ("reasoning", "reasoning_content", "thoughts", "thinking")
_NOT = {
    _COMPLETION: frozenset(
        {
            *(*_COLUMNS, *_BATCHES, "row", "example", "sample", "item", "doc", "record", "data"),
            *("task", "state", "info"),
        }
    ),
    _ROW: frozenset(
        {
            *(*_COLUMNS, *_BATCHES, "completion", "response", "reply", "output", "generation"),
            *("prediction", "solution_str", "reasoning"),
        }
    ),
}
"""The names of parameters that do not mean the reply, or the row: functions of other systems bind
by name (TRL, verifiers), or take a batch."""
_NOT_TYPES = {
    _COMPLETION: ("dict", "list", "Mapping", "Sequence", "float", "int"),
    _ROW: ("str", "list", "Sequence", "float", "int"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The keyword arguments of the environment (`--env.options.prompt_field=question`).

    Raises:
        ConfigError: an option that cannot work; the message has the remedy.
    """

    function: str = ""
    """The `module:function`, called as `function(completion, row)`: the text of the reply, without
    the thoughts that a reasoning parser takes out of it, and the whole row as its own dictionary. A
    third parameter `reasoning` gets the thoughts, "" if there are none. The result is the reward, a
    number of any size, or a dictionary with `reward` and other numbers, which become
    `reward_components`. The function may be async."""
    data: str | None = None
    """The file of rows (.jsonl, .json, .csv, .tsv, .parquet), a pattern of several, or the folder
    of a saved data set; short for `rows.path`."""
    eval_data: str | None = None
    """The same for held-out tasks; short for `rows.eval_path`. Without it a tenth of the prompts,
    chosen by hash, is held out (`rows.eval_fraction`)."""
    rows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The options of `agentgym_rl.gym.data.Rows`, such as `dataset` and `revision`."""
    prompt_field: str = ""
    """The field of the prompt: text, a list of chat messages, or the text parts of one. "":
    `prompt`, or that of a known form of rows (`gym/data/forms.py`), which is logged."""
    system_prompt: str = ""
    """The system message for prompts, which are refused if they have one of their own."""
    processor: str | None = None
    """The `module:function` that makes a row another one, a list of several, or None: left out."""
    blank_answers: bool = False
    """Whether rows without a reference answer are played. By default they are refused, if the
    reward is a function and the form of the rows names the column of answers."""
    executor: Executor = "inline"
    """The place where the function runs: on the event loop, for one that takes microseconds or is
    async; in a `thread`, for one that waits for something; or in the killable, locked-down `pool`
    of verifiers, for one that may hang or crash."""
    judge: Mapping[str, Any] | Sequence[Mapping[str, Any]] = field(default_factory=dict[str, Any])
    """A judge in place of `function`: the arguments of `arl_envs.judge.Judge`, such as `model` and
    `base_url`. A list of several is a panel: each score is the median of theirs."""
    rubric: str | Sequence[Mapping[str, Any]] = ()
    """The criteria of the judge: one as a text, or a list with the arguments of
    `arl_envs.judge.Criterion` (`name`, `text`, `weight`, `low`, `high`)."""
    reference_field: str = ""
    """The row's field with the reference that the judge is shown; "": there is none."""
    reward_model: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """A reward model in place of `function`: the arguments of `arl_envs.judge.RewardModel`."""
    timeout_s: float | None = None
    """The longest call; None: 10 s for a function, and for a judge or a reward model the time that
    its retries may take, besides the wait for its turn (`max_concurrent`). A longer one is a
    failure of the environment, never a reward of 0. The `pool`, which can kill a function, counts
    from the start in a worker and tries twice: a reply that takes too long (or too much memory)
    both times is worth 0 and counted (`verifier_timeouts`)."""

    def __post_init__(self) -> None:
        for name in ("function", "prompt_field", "system_prompt", "reference_field"):
            value: Any = getattr(self, name)
            if not isinstance(value, str):
                raise ConfigError(f"{name}: got {value!r}, expected text")
        if self.executor not in get_args(Executor):
            raise ConfigError(
                f"executor: got {self.executor!r}; allowed: {', '.join(get_args(Executor))}"
            )
        limit: Any = self.timeout_s
        number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not (number and 0 < limit < math.inf):
            raise ConfigError(f"timeout_s: got {limit!r}, expected seconds above 0")
        if not isinstance(self.blank_answers, bool):
            raise ConfigError(f"blank_answers: got {self.blank_answers!r}; allowed: true, false")
        if not isinstance(self.rows, Mapping):
            raise ConfigError(f'rows: got {self.rows!r}, expected a table such as {{"path": FILE}}')
        given: tuple[Any, ...] = (self.data, self.eval_data, self.rows)
        if not any(it if isinstance(it, str | Mapping) else it is not None for it in given):
            raise ConfigError(
                "no data: give --data FILE (.jsonl, .csv, .parquet; env.options.data), or a "
                "Hugging Face data set as --env.options.rows.dataset=ID"
            )
        if self.judged() is not None and self.executor != "inline":
            raise ConfigError(f"executor {self.executor!r}: a judge works with 'inline' alone")

    def judged(self) -> Judged | None:
        """Return the judge or the reward model that rewards, the same object for the same options;
        None if it is the function.

        Raises:
            ConfigError: not one of these three is named, or the judge cannot work.
        """
        named = [key for key in ("function", "judge", "reward_model") if getattr(self, key)]
        if len(named) != 1:
            raise ConfigError(
                f"the reward is given by {' and '.join(named) or 'nothing'}; expected one of a "
                "function (--env reward:MODULE:FUNCTION), env.options.judge with "
                "env.options.rubric, and env.options.reward_model"
            )
        extra = [key for key in ("rubric", "reference_field") if getattr(self, key)]
        if extra and not self.judge:
            raise ConfigError(f"{' and '.join(extra)} without a judge does nothing: leave it out")
        if self.function:
            return None
        return judged(self.judge, self.rubric, self.reference_field, self.reward_model)

    def limit_s(self) -> float:
        """Return the longest call, also where `timeout_s` is None."""
        if self.timeout_s is not None:
            return self.timeout_s
        by = self.judged()
        return 10.0 if by is None else by.longest_s

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
        if inspect.isclass(found):
            raise ConfigError(
                f"{self.function} is a class, and a call would only make an object of it: name a "
                f"function, or an object with __call__ (in the module: {found.__name__.lower()} = "
                f"{found.__name__}())"
            )
        names = parameters(found, self.function).names
        if odd := [name for name in names if name not in _FAMILIAR and name[0] != "_"]:
            _log_parameters(self.function, tuple(names), tuple(odd))
        called = found if inspect.isroutine(found) else type(found).__call__
        is_async = any(map(inspect.iscoroutinefunction, (found, called)))
        if self.executor != "inline" and is_async:
            raise ConfigError(f"{self.function} is async: that works with executor 'inline' alone")
        return found


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a reward function."""

    names: tuple[str, ...] = ()
    """The names of the first two parameters."""
    reasoning: bool = False
    """Whether the third parameter gets the thoughts."""
    others: tuple[str, ...] = ()
    """The names of the parameters that get their default."""

    def check_columns(self, row: Mapping[str, Any], function: str) -> None:
        """Refuse a function that takes a column of this row by its name.

        Raises:
            ConfigError: it does.
        """
        for name, given in zip(self.names, (_COMPLETION, _ROW), strict=False):
            if name in row and name not in ("completion", "row"):
                raise ConfigError(
                    f"{function}: `{name}` is a column of the rows, and the parameter would get "
                    f"{given}: {_REMEDY}"
                )
        for name in self.others:
            if name in row:
                raise ConfigError(
                    f"{function}: `{name}` is a column of the rows, and the parameter would always "
                    f"have its default: {_REMEDY}"
                )


def parameters(function: Callable[..., Any], name: str) -> Parameters:
    """Return the parameters of the reward function `name`.

    Raises:
        ConfigError: it cannot be called with a completion and a row, or the names or types of its
            parameters show that it expects something else.
    """
    try:
        found = inspect.signature(function)
    except ValueError:  # written in C, without a signature
        return Parameters()
    named = [each for each in found.parameters.values() if each.kind in _POSITIONAL]
    thinks = len(named) > 2 and named[2].name == "reasoning"
    try:
        found.bind("completion", {}, *([""] if thinks else []))
    except TypeError as error:
        raise ConfigError(
            f"{name} cannot be called as function(completion, row), or with a third parameter "
            f"`reasoning`: {error}; {_REMEDY}"
        ) from error
    for parameter, given in zip(named, (_COMPLETION, _ROW), strict=False):
        if parameter.name in _NOT[given] or _is_typed(parameter, _NOT_TYPES[given]):
            raise ConfigError(f"{name}{found}: `{parameter}` would get {given}: {_REMEDY}")
    others = [each for each in found.parameters.values() if each not in named[: 2 + thinks]]
    for parameter in others:
        more = parameter.kind is inspect.Parameter.VAR_KEYWORD and parameter.name[0] != "_"
        if parameter.name in _THOUGHTS or (more and named):
            raise ConfigError(
                f"{name}{found}: `{parameter}` would always be empty: thoughts are the third "
                f"parameter, `reasoning`; {_REMEDY}"
            )
    return Parameters(
        tuple(each.name for each in named[:2]), thinks, tuple(each.name for each in others)
    )


@lru_cache(maxsize=64)
def _log_parameters(function: str, names: tuple[str, ...], odd: tuple[str, ...]) -> None:
    """Log once what the parameters of a function get, where their names do not show it."""
    given = zip(names, (_COMPLETION, _ROW), strict=False)
    roles = ", ".join(f"`{name}` gets {what}" for name, what in given if name in odd)
    _log.warning("%s: %s; %s", function, roles, _REMEDY)


def _is_typed(parameter: inspect.Parameter, types: tuple[str, ...]) -> bool:
    """Return whether a parameter is annotated with one of these types."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return False
    name = (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )
    return name.partition("[")[0].rpartition(".")[2] in types
