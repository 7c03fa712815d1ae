"""The members of a live run, engines or rollout workers: listed, added, removed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgym_rl.cli import print_result
from agentgym_rl.core import ConfigError, EngineError, parse_json

_LOOK_TIMEOUT_S = 30.0


def change_members(
    args: Namespace, what: str, columns: Sequence[str], *, add: dict[str, Any]
) -> int:
    """Add members to a run, or remove the one that `args` names; print the current members, and
    return the exit code. `what` is engine or worker; `columns` are those of the table."""
    from arl_scale.admin_api import FILE  # slow imports

    if add and args.remove is not None:
        raise ConfigError("--add and --remove: give one of them")
    run = _Run(args.run, FILE)
    done: dict[str, Any] = {}
    if add:
        done = run.request(f"/{what}s/add", add)
    if args.remove is not None:
        done = run.request(f"/{what}s/remove", {what: args.remove})
    found = done | run.request(f"/{what}s")
    lines = [*_news(found), *_table(what, columns, found[f"{what}s"])]
    print_result(found, "\n".join(lines), as_json=args.json)
    return int(any(joined["error"] for joined in done.get("joined", [])))


class _Run:
    """A live run, reached at the address recorded in its folder."""

    def __init__(self, folder: Path, file: str) -> None:
        """Read the run's address and token; raise ConfigError if it is not live or not ours."""
        if not (folder / "config.toml").exists():
            raise ConfigError(f"{folder} is not the folder of a run (it has no config.toml)")
        try:
            control = parse_json((folder / file).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"{folder}: the run is not running, or is still starting (no {file})"
            ) from None
        except PermissionError:
            raise ConfigError(f"{folder / file} can be read only by the owner of the run") from None
        self._folder = folder
        self._url, self._token = control["url"], control["token"]
        self._timeout_s = float(control["timeout_s"])

    def request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to the run and return its answer.

        Raises:
            ConfigError: the run refuses the request.
            EngineError: the run cannot do this now, or does not answer.
        """
        from agentgym_rl.runtime.http_client import call

        try:
            status, answer = call(
                self._url,
                "GET" if body is None else "POST",
                path,
                body=None if body is None else json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {self._token}"},
                timeout_s=_LOOK_TIMEOUT_S if body is None else self._timeout_s,
            )
            found = parse_json(answer)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"{self._folder}: the run does not answer at {self._url} ({error}); if it has "
                "died, `arl train --resume` continues it"
            ) from None
        if status != 200:
            reason = found.get("error", f"HTTP {status}")
            raise (EngineError if status >= 409 else ConfigError)(reason)
        return found


def _news(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{joined['name']} did not join: {joined['error']}"
        for joined in found.get("joined", [])
        if joined["error"]
    ]
    return [*lines, f"{found['removed']} has left"] if "removed" in found else lines


def _table(what: str, columns: Sequence[str], members: Sequence[dict[str, Any]]) -> Iterator[str]:
    rows = [[what.upper(), *(column.upper() for column in columns[1:])]]
    for member in members:
        rows.append(["-" if member[column] is None else str(member[column]) for column in columns])
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
