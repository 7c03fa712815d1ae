"""A model that somebody else serves, in the place of an engine of ours, for `arl eval`.

app → session, turn       agents' requests, answered in its name and counted
asked, originals          what it is asked: chat completions, whatever the agent speaks
upstream                  whose fault a failure is
openai_upstream, litellm_upstream      how it is reached
"""

from .app import Relay

__all__ = ["Relay"]
