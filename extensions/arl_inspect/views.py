"""The views that environments add: a function that shows a message in another form, as a text, a
table or a picture. It is found by the environment's name in the group of entry points
`episode_views`."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym_rl.core import ConfigError, extension_names, load_extension

GROUP = "episode_views"

Message = Mapping[str, Any]
Part = str | Sequence[Sequence[Any]] | bytes
"""A text, a table as a list of rows, or the bytes of a PNG."""
View = Callable[[Message, Mapping[str, Any]], Sequence[Part] | None]
"""A function of a message and the task's data, {} if that is unknown. None: the message is shown as
it is."""

_VERSION = re.compile(r"-v\d+$")


def with_views(
    messages: Sequence[Message], env_id: str, task: Mapping[str, Any]
) -> Sequence[Message]:
    """Return the messages, those that the environment's view shows in another form with its parts
    under `shown`. A view that fails has its error there; without a view they are unchanged."""
    name = _VERSION.sub("", env_id.partition(":")[0])
    if name not in extension_names(GROUP):
        return messages
    return [_shown(message, name, task) for message in messages]


def _shown(message: Message, name: str, task: Mapping[str, Any]) -> Message:
    try:
        view: View = load_extension(GROUP, name)
        parts = view(message, task)
        shown = None if parts is None else [_part(part) for part in parts]
    except ConfigError as error:
        shown = [{"text": str(error)}]
    except Exception as error:  # foreign code, which must not hide the episode
        shown = [{"text": f"the view {name} failed: {type(error).__name__}: {error}"}]
    return message if shown is None else {**message, "shown": shown}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    if isinstance(part, bytes):
        return {"picture": f"data:image/png;base64,{base64.b64encode(part).decode()}"}
    return {"table": [[str(cell) for cell in row] for row in part]}
