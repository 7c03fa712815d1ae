"""The extension for models that are served elsewhere: `arl eval --engine=openai` and `litellm`, and
players of seats at a URL.

    keys                         the prices of tokens
    endpoint                     the kinds of engines: their keys, their check, their player
    relay -> session             agents' requests, forwarded to the model and counted
    upstream, litellm_upstream   the connections to the model, and the attribution of failures
"""

BUILDS_ON = ("arl_parsers",)
"""The extension that finds calls in texts of any family's notation."""
