"""The base class of every section of the configuration, and the comparison of configurations.

An annotation of a key defines when its value may change: `num_ranks: OnResume[int]`. Annotated keys
set where and how fast a run executes, and what it keeps and shows. Keys without an annotation set
what is played and learned.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from types import FunctionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

from .chat import is_list, is_mapping, is_tuple
from .errors import ConfigError
from .extensions import is_function_path, missing_member, path_of
from .registered import Kinds

KEYS = "keys"
"""The group of entry points of the keys that packages add (core/added_keys.py)."""

SECRET = "secret"
"""The type of errors whose input is not shown, since it may be a key."""


INNER = "inner"
"""The type of errors of a section that another package adds; their texts name the key."""

LARGEST = 2**53
"""The largest integer that JSON, SQLite and a float64 all represent exactly."""
LONGEST_S = 1e8
"""The longest time in seconds, three years: the clocks of event loops overflow later."""


Occasion = Literal["resume", "eval"]
"""The occasions for another value: a run is resumed, or a kept evaluation is continued."""


class Free:
    """The annotation of a key, or of all keys of a section, that may change on some occasions."""

    def __init__(self, *occasions: Occasion) -> None:
        self.occasions = occasions


class Fits:
    """The annotation of a key that, left unset, gets a value for the model (`models/defaults.py`).
    Its default is the value for a model of the size of the bundled ones."""


T = TypeVar("T")
S = TypeVar("S", bound="Section")
Fitted = Annotated[T, Fits()]
OnResume = Annotated[T, Free("resume")]
InEval = Annotated[T, Free("eval")]
Anytime = Annotated[T, Free("resume", "eval")]


class Needs(NamedTuple):
    """The rule that a key has no effect unless another key of its section has certain values."""

    key: str
    other: str
    """The other key, dotted if it is in a section below."""
    said: str
    """The description of those values of the other key, for the error."""
    fits: Callable[[Any], bool] = bool
    unless: Callable[[Mapping[str, Any]], bool] = lambda values: False
    """Whether, by the values of the section, the key has another use."""

    def found(self, section: Section) -> Any:
        """Return the value of the other key."""
        return reduce(getattr, self.other.split("."), section)


def one_of(*values: Any) -> Callable[[Any], bool]:
    """Return a predicate: the value is one of `values`."""
    return lambda value: value in values


def none_of(*values: Any) -> Callable[[Any], bool]:
    """Return a predicate: the value is none of `values`."""
    return lambda value: value not in values


class Section(BaseModel):
    """A table of keys, which may be declared by any package."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    absent: ClassVar[Mapping[str, str]] = {}
    """The reasons why keys that users may look for do not exist, by name."""
    needs: ClassVar[Sequence[Needs]] = ()
    """The rules of keys that have an effect only with some values of another key."""
    stands_for: ClassVar[Mapping[str, Callable[[str], Mapping[str, Any]]]] = {}
    """The functions that return the dotted keys, with their values, that the text of a key stands
    for, by the key; they raise `ConfigError` for a text that they cannot read."""

    added: ClassVar[Sequence[type[Section]]] = ()
    """The classes of the keys that other packages add to this one (core/added_keys.py)."""
    added_to: ClassVar[str | None] = None
    """The beginning of the dotted names of such keys; None: none can be added."""
    after: ClassVar[str] = ""
    """The key of the section behind which those of a package stand in lists; "": they are last."""
    added_by: ClassVar[str] = ""
    """The description of a registration that adds a section to this one; "": packages cannot add
    sections."""

    @classmethod
    def added_names(cls) -> Sequence[str]:
        """Return the names of the sections that other packages add to this one."""
        return ()

    @classmethod
    def added_field(cls, name: str) -> FieldInfo:
        """Return the key of a section that another package adds.

        Raises:
            ConfigError: the package cannot be imported, or has no section.
        """
        raise NotImplementedError

    def conflicts(self, config: Sections) -> Iterator[str]:
        """Yield an error, with its remedy, for each conflict of this section with other sections of
        `config`."""
        return iter(())

    def part(self, kind: type[S]) -> S:
        """Return this section as one with the keys that a package adds by `kind`.

        Raises:
            TypeError: it adds them to another section.
        """
        if not isinstance(self, kind):
            raise TypeError(f"{kind.__name__} is no part of {type(self).__name__}")
        return self

    def located(self, folder_of: Callable[[str], str], *, env_id: str) -> Self:
        """Return the section with absolute paths of the models that it names, which `folder_of`
        returns; `env_id` is the environment that they play."""
        return self

    def fitted_to(self, size: float) -> Mapping[str, tuple[Any, str]]:
        """Return values, each with its reason, of keys that depend on the number of parameters of
        the model; those that are set keep their values."""
        return {}

    @model_validator(mode="before")
    @classmethod
    def _no_missing_package(cls, values: Any) -> Any:
        """Refuse the keys of packages that were left out of the installation, by their names."""
        if cls.added_to is not None and is_mapping(values):
            for name in values.keys() - cls.model_fields.keys():
                if why := missing_key(f"{cls.added_to}{name}"):
                    raise ValueError(why)
        return values

    @model_validator(mode="before")
    @classmethod
    def _paths_of_objects(cls, values: Any) -> Any:
        """Replace a class or function by the path that names it, as in `env={"id": Guess}`."""
        return _with_paths(values) if is_mapping(values) else values

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        """Refuse a key that would have no effect."""
        for rule in self.needs:
            value, usual = getattr(self, rule.key), default(self, rule.key)
            other = rule.found(self)
            if value == usual or rule.fits(other) or rule.unless(dict(self)):
                continue
            said = f"{rule.key} {value!r}"
            if isinstance(value, Section):
                keys = sorted(value.model_fields_set)
                chosen = [key for key in keys if getattr(value, key) != getattr(usual, key, None)]
                said = ", ".join(f"{rule.key}.{key}" for key in chosen)
            raise ValueError(
                f"{said} does nothing unless {rule.other} is {rule.said}, and it is "
                f"{other!r}: leave {rule.key} out, or change {rule.other}"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _no_switch(cls, values: Any) -> Any:
        """Refuse true and false for a key that is not a switch: they would be read as the numbers 1
        and 0."""
        for name, value in values.items() if is_mapping(values) else ():
            field = cls.model_fields.get(str(name))
            kind = field and field.annotation
            if field and isinstance(value, bool) and not {bool, Any} & {kind, *get_args(kind)}:
                raise ValueError(f"{name} is no switch, and {value} is for switches alone")
        return values

    @field_validator("*", mode="after")
    @classmethod
    def _can_be_kept(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers that a run's files or clocks cannot hold."""
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"too large; allowed: at most 2^53 = {LARGEST:,}")
        if str(info.field_name).endswith("_s") and isinstance(value, float) and value > LONGEST_S:
            raise ValueError(f"too long; allowed: at most {LONGEST_S:,.0f} seconds")
        return value


def _with_paths(values: Mapping[Any, Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name, value in values.items():
        if is_list(value) or is_tuple(value):
            value = type(value)(path_of(it) if _is_object(it) else it for it in value)
        found[name] = path_of(value) if _is_object(value) else value
    return found


def _is_object(value: object) -> bool:
    return isinstance(value, (type, FunctionType))


def named_or_function(name: str, known: Sequence[str]) -> str:
    """Return a value that names one of some `known` parts, or a function as `module:function`.

    Raises:
        ValueError: it is neither; the message has the nearest match.
    """
    if name in known or is_function_path(name):
        return name
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"expected {', '.join(known)}, or a function as module:function{hint}")


def missing_key(name: str) -> str:
    """Return why a dotted key is not there, if its package was left out of the installation."""
    return missing_member(KEYS, name, f"{name} is a key")


class NoKeys(Section):
    """A section without keys."""


class Sections(Section):
    """A configuration of several sections, which are found by their classes."""

    def of(self, kind: type[S]) -> S:
        """Return the section of a class, or of a class derived from it."""
        return next(it for it in self.sections if isinstance(it, kind))

    @property
    def sections(self) -> Iterator[Section]:
        """Yield the sections, in the order of their names in the class."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return (value for value in values if isinstance(value, Section))

    @model_validator(mode="after")
    def _no_conflict(self) -> Self:
        for section in self.sections:
            if problem := next(iter(section.conflicts(self)), ""):
                raise ValueError(problem)
        return self


def default(section: Section, name: str) -> Any:
    """Return the default of a key."""
    return type(section).model_fields[name].get_default(call_default_factory=True)


def field_of(model: type[BaseModel], name: str) -> FieldInfo | None:
    """Return a key of a section, also one that another package adds; None: there is none.

    Raises:
        ConfigError: see `Section.added_field`.
    """
    if name in model.model_fields or not issubclass(model, Section):
        return model.model_fields.get(name)
    return model.added_field(name) if name in model.added_names() else None


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return all keys of a section, those that other packages add last. A package that cannot be
    imported is skipped, because this is for lists; using its section raises the error."""
    found = dict(model.model_fields)
    if not issubclass(model, Section):
        return found
    for name in model.added_names():
        with contextlib.suppress(ConfigError):
            found[name] = model.added_field(name)
    return found


def section_types(field: FieldInfo) -> Sequence[type[BaseModel]]:
    """Return the sections a key may hold, the default one first; none if it holds a plain value."""
    for mark in field.metadata:
        if isinstance(mark, Kinds):
            return mark.sections
    if not isinstance(field.default, BaseModel):
        return ()
    default = type(field.default)
    return (default, *(kind for kind in get_args(field.annotation) if kind is not default))


def reached(model: type[BaseModel], values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a dotted key in `values`, or its default."""
    first, _, rest = name.partition(".")
    field = model.model_fields[first]
    usual = field.get_default(call_default_factory=True)
    found = values.get(first, usual)
    if not rest:
        return found
    (section,) = section_types(field)
    return reached(section, found, rest) if is_mapping(found) else getattr(usual, rest)


def free_keys(section: type[BaseModel], occasion: Occasion) -> Iterator[str]:
    """Yield the dotted names of the keys and sections that may change on an occasion."""
    for name, field in fields_of(section).items():
        marks = [mark for mark in field.metadata if isinstance(mark, Free)]
        if any(occasion in mark.occasions for mark in marks):
            yield name
            continue
        for kind in section_types(field):
            yield from (f"{name}.{key}" for key in free_keys(kind, occasion))


def unset_keys(section: BaseModel) -> Iterator[str]:
    """Yield the dotted names of the keys that are still to be fitted to the model."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from (f"{name}.{key}" for key in unset_keys(value))
        elif (name not in section.model_fields_set or value is None) and any(
            isinstance(mark, Fits) for mark in field.metadata
        ):
            yield name


def without(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return nested `values` without the dotted keys `names`."""
    for name in names:
        *tables, last = name.split(".")
        inner = values
        for table in tables:
            inner = inner.get(table, {})
        inner.pop(last, None)
    return values


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], *, free: Iterable[str] = ()
) -> list[str]:
    """Return the values of `other` that differ from `one`, like "eval.seed is 1, not 0".

    Keys that are `free`, or in a section that is `free`, may differ.
    """
    allowed = tuple(free)
    before, after = flat(one), flat(other)
    return [
        f"{key} is {_said(after, key)}, not {_said(before, key)}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
        and not any(key == name or key.startswith(f"{name}.") for name in allowed)
    ]


_SECRET_IN_URL = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:[^/\s?#@]*@|\S*[?&](?:[\w-]*[_-])?(?:api)?(?:key|token|secret|passw\w*|sig\w*)=)",
    re.I,
)


def secret_in(value: Any, place: str = "") -> str:
    """Return the dotted name of a value, below `place`, that is a URL with a user, a password or a
    key; "" if there is none."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if is_mapping(value):
        inside = ((it, f"{place}.{name}".lstrip(".")) for name, it in value.items())
        return secret_in(list(map(str, value)), place) or _first(inside)
    if is_list(value) or is_tuple(value):
        return _first((it, place) for it in value)
    return place if isinstance(value, str) and _SECRET_IN_URL.search(value) else ""


def _first(values: Iterable[tuple[Any, str]]) -> str:
    return next((found for value, place in values if (found := secret_in(value, place))), "")


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if is_mapping(value) else {name: value}
    return found


def _said(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key], ensure_ascii=False, default=str) if key in flat else "unset"
