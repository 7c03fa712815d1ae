"""The key of Muon, which this extension adds to the section `trainer`, and the check for
torchao."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from agentgym_rl.core import Needs, Section, one_of

if TYPE_CHECKING:
    from agentgym_rl.config import Config, TrainerConfig


class MomentumKeys(Section):
    """The key of Muon."""

    after = "optimizer_options"
    needs: ClassVar[Sequence[Needs]] = (
        Needs("momentum", "optimizer", "'muon' (AdamW has betas)", one_of("muon")),
    )

    momentum: float = Field(default=0.95, ge=0, lt=1)
    """The decay of Muon's mean gradient."""


def lacking(config: TrainerConfig) -> str:
    """Return why the optimizer does not work here; "" if it does."""
    if config.optimizer != "adamw8bit" or importlib.util.find_spec("torchao") is not None:
        return ""
    return (
        "trainer.optimizer='adamw8bit' needs torchao, which is not installed: pip install torchao, "
        "or use adamw or muon"
    )


def check_torchao(config: Config, trains: bool) -> Iterator[str]:
    """Yield an error if the run trains with states of 8 bits, and torchao is missing."""
    if trains and (why := lacking(config.trainer)):
        yield why
