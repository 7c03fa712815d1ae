"""Sections and values that packages register: the `type` of such a section names a member of a
registry, and the member has the class of the section's keys. A member is imported when its type is
chosen, or when all are listed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from .chat import is_mapping
from .extensions import extension_names, load_extension, load_extensions, missing_member


class Ordered:
    """A member of a registry whose members are in order."""

    order: int = 1000
    """Its place in lists; those with the same are sorted by name."""


O = TypeVar("O", bound=Ordered)  # noqa: E741


def in_order(group: str, *, of: type[O]) -> dict[str, O]:
    """Return all members of a group that can be imported, by name, in their order."""
    found = load_extensions(group, of=of)
    return dict(sorted(found.items(), key=lambda one: (one[1].order, one[0])))


class WithKeys(ABC):
    """A member of a registry whose members have keys of their own."""

    section: ClassVar[type[BaseModel]]
    """The class of its keys; the default of `type` is its name."""
    order: ClassVar[int] = 1000
    """Its place in lists; those with the same are sorted by name."""

    @property
    def name(self) -> str:
        """Return its name in the registry."""
        return type_of(self.section)


def type_of(section: type[BaseModel]) -> str:
    """Return the `type` that chooses a section."""
    return section.model_fields["type"].default


class OneOf:
    """The mark of a key whose values are registered names; those other than the `usual` one are
    found when they are needed. `group`: the registry of which they are the members, if they are."""

    def __init__(self, names: Callable[[], Sequence[str]], *, usual: str, group: str = "") -> None:
        self.names, self.usual, self.group = names, usual, group

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._known)

    def _known(self, value: Any) -> Any:
        if value != self.usual and value not in (names := self.names()):
            if why := missing_member(self.group, str(value), f"{value!r} is a type"):
                raise ValueError(why)
            *others, last = map(repr, names)
            expected = f"{', '.join(others)} or {last}" if others else last
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value


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
        if isinstance(value, BaseModel):
            return value
        value = {"type": value} if isinstance(value, str) else value
        if not is_mapping(value):
            raise PydanticKnownError("model_attributes_type")
        values = {"type": self.usual, **value}
        name = values["type"]
        if not isinstance(name, str) or name not in extension_names(self.group):
            if why := missing_member(self.group, str(name), f"{name!r} is a type"):
                raise ValueError(why)
            members = self.members
            known = ", ".join(map(repr, sorted(members, key=lambda it: (members[it].order, it))))
            raise PydanticKnownError(
                "union_tag_invalid",
                {"discriminator": "'type'", "tag": str(name), "expected_tags": known},
            )
        return self[name].section.model_validate(values)


def offered(group: str, attribute: str) -> list[str]:
    """Return the values that the sections of a group's members have in an attribute, in order."""
    members = Registered(group, WithKeys, usual="").members.values()
    return list(
        dict.fromkeys(it for member in members for it in getattr(member.section, attribute))
    )
