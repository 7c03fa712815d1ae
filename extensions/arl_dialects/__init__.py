"""The extension for clients of other APIs than chat completions: OpenAI's Responses and Anthropic's
Messages.

    responses  responses_request, responses_items    the Responses API: replies; its requests
    responses_stored                                 its stored responses and conversations
    messages   messages_request, messages_threads    Messages: replies; requests; threads
    stored                                           what a session keeps for both
"""
