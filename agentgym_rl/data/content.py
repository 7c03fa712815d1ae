"""Digests that are the same where the same tasks come in the same order."""

from __future__ import annotations

import hashlib
import json
from typing import Any

CONTENT = "content"
"""Key of such a digest in what a source's `describe` says."""


def content_of(*parts: Any) -> str:
    """The digest of `parts`, in their order; JSON, of which the order of keys does not count."""
    try:
        text = json.dumps(parts, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):  # no JSON: keys of several kinds, a cycle
        text = repr(parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
