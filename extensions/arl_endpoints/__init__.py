"""The extension for models that are served elsewhere: `arl eval --engine=openai` and `litellm`, and
players of seats at a URL."""
