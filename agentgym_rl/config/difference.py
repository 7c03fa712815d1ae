"""What two configurations differ in, key by key, as a person would say it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tomli_w


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
