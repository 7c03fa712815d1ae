"""The arguments of a chat template: the switch of thoughts, the effort, and a client's own.

Templates call the switch `enable_thinking` or `thinking`; clients send `enable_thinking`, or an
effort, of which "none" switches thoughts off and all others switch them on. A key of
the configuration takes precedence over requests.

An argument that the template does not read has no effect: it is left out, so that conversations
with and without it are the same, and a warning names it once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Set
from typing import Any

from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import LruDict

from .template import NO_KWARGS, RESERVED

_log = logging.getLogger(__name__)

_SWITCH, _EFFORT = "enable_thinking", "reasoning_effort"
_SWITCHES = (_SWITCH, "thinking")
"""The names of the switch in templates."""
_MOST_NAMED = 20
"""The maximum number of arguments without effect that warnings name."""
_KEPT = 64
"""The number of sets of arguments that are kept as objects."""


class Arguments:
    """The arguments that one template reads, and those imposed on all requests.

    `variables`: the names that the template uses. `thinks`: the switch for all requests, if set.

    Raises:
        ConfigError: `thinks` is set, and the template has no switch.
    """

    def __init__(self, variables: Set[str], *, thinks: bool | None) -> None:
        self.read = variables - RESERVED
        """The names of arguments that have an effect."""
        self._switches = [name for name in _SWITCHES if name in self.read]
        if thinks is not None and not self._switches:
            raise ConfigError(
                f"gateway.enable_thinking is {str(thinks).lower()}, but the chat template reads "
                f"neither {' nor '.join(_SWITCHES)}, so it has no switch for thoughts: leave the "
                "key out"
            )
        self.imposed = NO_KWARGS if thinks is None else dict.fromkeys(self._switches, thinks)
        """The arguments of every rendering, whatever a request has (`ChatFormat.render`)."""
        self._known: LruDict[str, Mapping[str, Any]] = LruDict(_KEPT)
        self._named = set[str]()

    def of(self, requested: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a request that have an effect, and the imposed ones; equal
        results are usually the same object."""
        if not requested:
            return NO_KWARGS
        self._warn(requested)
        wanted = dict(requested)
        if _EFFORT in wanted:
            wanted.setdefault(_SWITCH, wanted[_EFFORT] != "none")
        if _SWITCH in wanted:
            wanted = dict.fromkeys(self._switches, wanted[_SWITCH]) | wanted
        free = self.read - self.imposed.keys()
        found = {name: value for name, value in wanted.items() if name in free}
        if not found:
            return NO_KWARGS
        key = json.dumps(found, sort_keys=True)
        known = self._known.get(key)
        if known is None:
            self._known[key] = known = found
        return known

    def _warn(self, requested: Mapping[str, Any]) -> None:
        for name in requested:
            known = name in self.read or name in self._named
            switches = name in (_SWITCH, _EFFORT) and self._switches
            if known or switches or len(self._named) == _MOST_NAMED:
                continue
            self._named.add(name)
            _log.warning(
                "requests set %r, which the chat template does not read: it has no effect",
                name[:100],
            )
