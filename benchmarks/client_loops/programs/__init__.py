"""Programs, one for each framework, and each for an interpreter that has this framework.

Each asks a question, offers the tool `calculator`, and asks another one in the same conversation.
"""
