"""A gateway for `arl eval` to a model that is served elsewhere, in place of our own engine.

app → session, turn       agents' requests, answered in the model's name and counted
request                   the requests to the model: chat completions, for every dialect
upstream                  the attribution of failures
openai_upstream, litellm_upstream      the connections to the model
"""

from .app import Relay

__all__ = ["Relay"]
