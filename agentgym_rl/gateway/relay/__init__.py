"""A gateway for `arl eval` to a model that is served elsewhere, in place of our own engine.

app → session                agents' requests, answered in the model's name and counted
upstream, litellm_upstream   the connections to the model, and the attribution of failures
"""
