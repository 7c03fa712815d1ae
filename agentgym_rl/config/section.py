"""What every section of the configuration is.

What two configurations differ in, key by key, as a person would say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

SECRET = "secret"
"""Type of the errors whose input is not shown: it may be a key."""


LARGEST = 2**53
"""The largest whole number that JSON, SQLite and a float64 all keep as it is."""
LONGEST_S = 1e8
"""The longest time in seconds, three years: the clocks of event loops overflow later."""


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    absent: ClassVar[Mapping[str, str]] = {}
    """Why there is no key of a name that one may look for."""

    @field_validator("*", mode="after")
    @classmethod
    def _can_be_kept(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers that a run's files or clocks cannot hold."""
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"too large; allowed: at most 2^53 = {LARGEST:,}")
        if str(info.field_name).endswith("_s") and isinstance(value, float) and value > LONGEST_S:
            raise ValueError(f"too long; allowed: at most {LONGEST_S:,.0f} seconds")
        return value


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], *, free: Iterable[str] = ()
) -> list[str]:
    """ "eval.seed is 1, not 0": where `other` has other values than `one`.

    Keys that are `free`, or in a section that is, may differ.
    """
    allowed = tuple(free)
    before, after = _flat(one), _flat(other)
    return [
        f"{key} is {_said(after, key)}, not {_said(before, key)}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
        and not any(key == name or key.startswith(f"{name}.") for name in allowed)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {}
        found |= inner or {f"{prefix}{key}": value}
    return found


def _said(flat: Mapping[str, Any], key: str) -> str:
    return tomli_w.dumps({"x": flat[key]}).strip()[4:] if key in flat else "unset"
