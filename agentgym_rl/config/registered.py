"""Sections whose types packages register: the `type` of such a section names a member of a
registry, and the member has the class of the section's keys. A member is imported when its type is
chosen, or when all are listed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from agentgym_rl.core.chat import is_mapping
from agentgym_rl.core.extensions import extension_names, load_extension, load_extensions


class WithKeys(ABC):
    """A member of a registry whose members have keys of their own."""

    section: ClassVar[type[BaseModel]]
    """The class of its keys; the default of `type` is its name."""
    order: ClassVar[int] = 1000
    """Its place in lists; those with the same are sorted by name."""


class Kinds(ABC):
    """The annotation of a key that holds one of several sections, which are looked up when they are
    needed."""

    @property
    @abstractmethod
    def sections(self) -> Sequence[type[BaseModel]]:
        """Return the sections, the default one first."""


M = TypeVar("M", bound=WithKeys)


class Registered(Kinds, Generic[M]):
    """The annotation of a key that holds the section of a member of `group`, by default of
    `usual`."""

    def __init__(self, group: str, member: type[M], *, usual: str) -> None:
        self.group, self.member, self.usual = group, member, usual

    def __getitem__(self, name: str) -> M:
        """Return the member of a name.

        Raises:
            ConfigError: there is no such member, or it cannot be imported.
        """
        return load_extension(self.group, name, of=self.member)

    @property
    def members(self) -> Mapping[str, M]:
        """Return all members that can be imported, by name: the usual one, then in their order."""
        found = load_extensions(self.group, of=self.member)
        names = sorted(found, key=lambda name: (name != self.usual, found[name].order, name))
        return {name: found[name] for name in names}

    @property
    def sections(self) -> Sequence[type[BaseModel]]:
        return [member.section for member in self.members.values()]

    def default(self) -> Any:
        """Return the section of the usual member, with its defaults."""
        return self[self.usual].section()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._typed, handler(source))

    def _typed(self, value: Any) -> Any:
        """Return the section of a table; a table without a type is for the usual member."""
        if not is_mapping(value):
            return value
        values = {"type": self.usual, **value}
        name = values["type"]
        if not isinstance(name, str) or name not in extension_names(self.group):
            known = ", ".join(map(repr, self.members))
            raise PydanticKnownError(
                "union_tag_invalid",
                {"discriminator": "'type'", "tag": str(name), "expected_tags": known},
            )
        return self[name].section.model_validate(values)
