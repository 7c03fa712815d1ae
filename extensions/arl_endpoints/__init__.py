"""The extension for models that are served elsewhere: `arl eval --engine=openai` and `litellm`, and
players of seats at a URL.

    keys                         the prices of tokens
    endpoint                     the kinds of engines: their keys, their check, their player
    relay -> session             agents' requests, forwarded to the model and counted
    upstream, litellm_upstream   the connections to the model, and the attribution of failures
"""
