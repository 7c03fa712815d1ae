"""The contract of grammars of replies in a model's format: only replies that its parser reads as
requested. Installed packages write them: the group `agentgym_rl.grammars` of entry points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym_rl.core import Choices, absent_members, added_class
from agentgym_rl.gateway.errors import ApiError, unsupported
from agentgym_rl.gateway.request.reply_form import ReplyForm
from agentgym_rl.gateway.template.chat_format import ChatFormat

from .formats import Format
from .think import Thoughts

GRAMMARS = "grammars"
"""The group of entry points."""


@dataclass(frozen=True, kw_only=True)
class ModelFormat:
    """The format of one model's replies."""

    chat: ChatFormat
    family: str
    """The name of the format of its calls; "none": they are text."""
    calls: Format | None
    thoughts: Thoughts | None
    """The tags of its thoughts; None if it has none."""


class Grammars(ABC):
    """The grammars of one model. A member of the group is a subclass."""

    def __init__(self, model: ModelFormat) -> None:
        self.model = model

    @abstractmethod
    def of(self, form: ReplyForm, prompt_end: str) -> str:
        """Return the grammar of a complete reply, including its end token. `prompt_end`: the end of
        the prompt as text; thoughts, if the model has any, come first and are free.

        Raises:
            ApiError: 400, the model's format does not allow it.
        """

    @abstractmethod
    def choices(self, grammar: str, tokens: Sequence[int]) -> Choices | None:
        """Return the tokens among which `grammar` (a result of `of`) let each token of a reply be
        chosen. None: the engine did not follow the same grammar, which is logged once."""


class NoGrammars(Grammars):
    """The grammars where no package that writes them is installed: every demand is refused."""

    def of(self, form: ReplyForm, prompt_end: str) -> str:
        raise not_forced(form, f"no installed package writes grammars.{absent_members(GRAMMARS)}")

    def choices(self, grammar: str, tokens: Sequence[int]) -> Choices | None:
        raise NotImplementedError("there is no grammar whose choices were to be found")


def not_forced(form: ReplyForm, why: str) -> ApiError:
    """Return the error of a form that no reply can be forced into."""
    return unsupported(form.param, f"{why} (gateway.forced 'free' needs no grammar)")


def open_grammars(model: ModelFormat) -> Grammars:
    """Return the grammars of a model, of the installed class; another package's class takes
    precedence over the first-party one.

    Raises:
        ConfigError: several other packages have one.
    """
    made = added_class(GRAMMARS, Grammars, would="write the grammars of replies")
    return (made or NoGrammars)(model)
