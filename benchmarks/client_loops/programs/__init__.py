"""Programs, one for each framework, and each for an interpreter that has this framework.

Each sends a question with the tool `calculator`, and then another one in the same conversation.
"""
