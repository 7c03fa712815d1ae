"""The older forms of task.toml, replaced by those of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIZES_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


def plain(value: Any) -> Any:
    """Return tables and lists as new ones, which may be changed."""
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{value!r:.60}: a NUL character is not allowed")
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def migrate(data: dict[str, Any]) -> None:
    """Replace deprecated fields by those that took their place."""
    artifacts = data.get("artifacts")
    if isinstance(artifacts, list):
        data["artifacts"] = [
            {"source": each} if isinstance(each, str) else each for each in artifacts
        ]
    _migrate_place("environment", data.get("environment"))
    verifier = data.get("verifier")
    if isinstance(verifier, dict):
        _migrate_place("verifier.environment", verifier.get("environment"))


def _migrate_place(path: str, environment: Any) -> None:
    if not isinstance(environment, dict):
        return
    for old in ("memory", "storage"):
        if (size := environment.pop(old, None)) is None:
            continue
        megabytes = _megabytes(f"{path}.{old}", size)
        if environment.setdefault(f"{old}_mb", megabytes) != megabytes:
            raise ValueError(f"{path}.{old} and {path}.{old}_mb contradict each other")
    internet = environment.pop("allow_internet", None)
    if internet is not None and "network_mode" not in environment:
        if not isinstance(internet, bool):
            raise ValueError(f"{path}.allow_internet: got {internet!r}, allowed: true, false")
        environment["network_mode"] = "public" if internet else "no-network"


def _megabytes(path: str, size: Any) -> int:
    text = str(size).strip().upper()
    try:
        return int(float(text[:-1]) * _SIZES_MB[text[-1:]])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{path}: got {size!r}, expected a size such as '2G' or '512M'") from None
