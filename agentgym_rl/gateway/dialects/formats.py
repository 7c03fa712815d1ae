"""The wire formats that the gateway serves: those of installed packages, by the entry points of
`agentgym_rl.dialects`. Chat completions and plain completions are one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgym_rl.core import ConfigError, load_extensions
from agentgym_rl.core.extensions import PREFIX
from agentgym_rl.gateway.template.chat_format import ChatFormat

from . import Count, Route

GROUP = "dialects"
"""The group of entry points."""


@dataclass(frozen=True, slots=True)
class Served:
    """The parts of a server that its routes may use."""

    count: Count
    """The count of a request's prompt tokens."""
    chat: ChatFormat | None = None
    """The chat template and the tokenizer; None: the model is served elsewhere."""
    max_model_len: int = 0
    """The context length in tokens, with `chat`."""


class WireFormat(ABC):
    """A wire format of an API: its routes, and the headers that its clients send."""

    order: ClassVar[int] = 100
    """The place among all formats; formats with the same number are sorted by name."""
    key_headers: ClassVar[tuple[str, ...]] = ()
    """The headers that may have the API key instead of `Authorization: Bearer KEY`. Those of all
    installed formats are read on every path."""
    client_header: ClassVar[str] = ""
    """A header that identifies its clients on every path: their errors have the format of the first
    of its routes."""

    @abstractmethod
    def routes(self, served: Served) -> Sequence[Route]:
        """Return the routes for one server: dialects, questions and resources."""


def wire_formats() -> Mapping[str, WireFormat]:
    """Return the installed formats by name, in order; a broken one is left out, with a warning."""
    found = load_extensions(GROUP, of=WireFormat)
    return dict(sorted(found.items(), key=lambda one: (one[1].order, one[0])))


def routes_of(formats: Mapping[str, WireFormat], served: Served) -> dict[str, Sequence[Route]]:
    """Return the routes of each format, by its name.

    Raises:
        ConfigError: two formats have one path.
    """
    found = {name: one.routes(served) for name, one in formats.items()}
    owners: dict[str, str] = {}
    for name, routes in found.items():
        for path in dict.fromkeys(route.path for route in routes):
            if path in owners:
                raise ConfigError(
                    f"{owners[path]} and {name} ({PREFIX}{GROUP}) both serve {path}, and one alone "
                    "can: uninstall the package of the other"
                )
            owners[path] = name
    return found
