"""A reward function for `reward-v0`, as somebody would write one."""


def exact(completion: str, row: dict) -> float:
    """1 for the answer alone."""
    return float(completion.strip() == str(row["answer"]))
