"""The problem that every program solves, and the tool that it offers."""

import os

MODEL = os.environ["ARL_MODEL"]
URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]
SYSTEM = "Solve the problem. Put the final answer in \\boxed{}."
FIRST = "Mia has 57 boxes with 22 cards in each box. How many cards?"
SECOND = "Ann has 490 eggs and loses 137. How many eggs are there? ✓"


def calculator(expression: str, digits: int = 2) -> str:
    """Do one arithmetic operation.

    Args:
        expression: The operation.
        digits: The number of digits.
    """
    return f"{expression} = {len(expression)}, {digits} ✓"
