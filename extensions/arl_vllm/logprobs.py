"""The log-probs of sampled tokens inside a vLLM server, without those of excluded tokens.

A request under `top_p`, `top_k` or `min_p` asks for as many log-probs per token as tokens may be
left to draw from, and one more, which shows that these are all. Where fewer are left, vLLM fills
the list with excluded tokens, of log-prob -inf, one of which shows the same.
"""

# vllm is not in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)


def trimmed(lists: Any) -> Any:
    """Return vLLM's `LogprobsLists` of one request with one excluded token at most per position (if
    all positions have as many allowed ones). The first column is of the sampled tokens; the others
    are in the order of their log-probs."""
    num_left = (lists.logprobs[:, 1:] > -np.inf).sum(axis=1).max(initial=0)
    columns = slice(int(num_left) + 2)
    ids, logprobs = lists.logprob_token_ids[:, columns], lists.logprobs[:, columns]
    return lists._replace(logprob_token_ids=ids, logprobs=logprobs)


def trim_logprobs() -> None:
    """Make vLLM's API process trim all log-probs before it makes replies of them. Idempotent."""
    from vllm.v1.engine.logprobs import LogprobsProcessor

    name = "_update_sample_logprobs"
    update: Callable[..., None] | None = getattr(LogprobsProcessor, name, None)
    if update is None:
        _log.warning("this vLLM has no LogprobsProcessor.%s: replies are long", name)
    elif update.__module__ != __name__:

        def update_trimmed(self: Any, logprobs_lists: Any) -> None:
            update(self, trimmed(logprobs_lists))

        setattr(LogprobsProcessor, name, update_trimmed)
