"""The base class of every section of the configuration, and the comparison of configurations.

An annotation of a key defines when its value may change: `num_ranks: OnResume[int]`. Annotated keys
set where and how fast a run executes, and what it keeps and shows. Keys without an annotation set
what is played and learned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from .chat import is_dict, is_list, is_mapping, is_tuple
from .errors import ConfigError, near_match, near_names, near_of
from .extensions import is_function_path, missing_member, path_of
from .key_errors import (
    SAVE_FIRST,
    THEIR_NAMES,
    key_error,
    key_lines,
    names_of,
    saved_as,
    table_of,
)
from .registered import Kinds, type_of

KEYS = "keys"
"""The group of entry points of the keys that packages add (core/added_keys.py)."""

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


if TYPE_CHECKING:
    _Checked = BaseModel
else:

    class _Refusing(type(BaseModel)):
        """The class of sections: to make one with wrong values is a ConfigError."""

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise ConfigError(f"{cls.__name__}: {'; '.join(key_faults(cls, error))}") from None

    class _Checked(BaseModel, metaclass=_Refusing):
        """A table of keys whose errors are in our own words."""


class Section(_Checked):
    """A table of keys, which may be declared by any package."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    short: ClassVar[str] = ""
    """The key that a single value in place of the section sets, as in `env="math"`; "": none."""
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
    def _paths_of_objects(cls, given: Any) -> Any:
        """Replace a class or function by the path that names it, as in `env={"id": Guess}`. A
        section does that itself: it may mean another one by a function."""
        values: Any = table_of(given, cls.short)
        if not is_mapping(values):
            return values
        fields = {name: cls.model_fields.get(str(name)) for name in values}
        sections = {name for name, field in fields.items() if field and section_types(field)}
        return {
            str(name): it if name in sections else _with_paths(it, name)
            for name, it in values.items()
        }

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


def _with_paths(value: Any, key: Any) -> Any:
    """Return the value of a key with the path of each class or function in it, at every depth."""
    if is_dict(value):
        return {name: _with_paths(it, key) for name, it in value.items()}
    if is_list(value) or is_tuple(value):
        return type(value)(_with_paths(it, key) for it in value)
    if save := saved_as(value):
        raise key_error(key, f"got a {type(value).__name__}; {SAVE_FIRST.format(save)}")
    try:
        return path_of(value) if isinstance(value, (type, FunctionType)) else value
    except ConfigError as error:
        raise key_error(key, error) from error


def named_or_function(name: str, known: Sequence[str]) -> str:
    """Return a value that names one of some `known` parts, or a function as `module:function`.

    Raises:
        ValueError: it is neither; the message has the nearest match.
    """
    if name in known or is_function_path(name):
        return name
    near = near_match(name, known)
    raise ValueError(f"expected {', '.join(known)}, or a function as module:function{near}")


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


def key_faults(model: type[BaseModel], error: ValidationError, prefix: str = "") -> list[str]:
    """Return a line for each wrong key of `model`, whose dotted names begin with `prefix`."""

    def place(loc: Sequence[int | str]) -> str:
        """Return the dotted key of an error, without pydantic's own mention of a section's type."""
        kinds: Sequence[type[BaseModel]] = (model,)
        parts = [prefix] if prefix else []
        for part in loc:
            fields = [it for kind in kinds if (it := field_of(kind, str(part))) is not None]
            typed = [kind for kind in kinds if "type" in kind.model_fields]
            if not fields and part in [type_of(kind) for kind in typed]:
                continue
            if not fields and isinstance(part, str) and not kinds:
                break  # inside a plain value: pydantic's name of one of its types
            parts.append(str(part))
            kinds = section_types(fields[0]) if fields else ()
        return ".".join(parts)

    return key_lines(error, place, lambda name: near_key(model, name.removeprefix(f"{prefix}.")))


def near_key(
    model: type[BaseModel], name: str, kinds: Sequence[type[BaseModel]] | None = None
) -> str:
    """Return a hint for an unknown dotted key: the reason why it is not there, the nearest match,
    the place of a key with its name, or all keys of its section, which may be of several `kinds`.
    """
    *tables, last = name.split(".")
    if kinds is None:
        kinds = (model,)
        for table in tables:
            fields = [it for kind in kinds if (it := field_of(kind, table)) is not None]
            kinds = [it for field in fields for it in section_types(field)] or kinds
    for kind in kinds:
        if issubclass(kind, Section) and last in kind.absent:
            return kind.absent[last]
    known = dict.fromkeys(key for kind in kinds for key in names_of(kind))
    if tables and last in known:
        inner = f"{last!r}: …"
        for table in reversed(tables[1:]):
            inner = f"{table!r}: {{{inner}}}"
        return f"dotted keys are for `overrides`; here it is {tables[0]}={{{inner}}}"
    elsewhere = THEIR_NAMES.get(last) or next(_named(model, last), "")
    if elsewhere and not near_names(last, known, cutoff=0.8):
        return f"did you mean {elsewhere}?"
    return near_of(last, known, prefix="".join(f"{table}." for table in tables))


def _named(model: type[BaseModel], name: str, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys whose last part is `name`."""
    if name in model.model_fields:
        yield f"{prefix}{name}"
    for key, field in model.model_fields.items():
        for kind in section_types(field):
            yield from _named(kind, name, f"{prefix}{key}.")


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
