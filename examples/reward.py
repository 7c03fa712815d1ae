"""A reward function and a file of prompts: nothing else is needed to train.

python examples/reward.py sums.jsonl
PYTHONPATH=examples arl train --env reward:reward:score --data sums.jsonl --agent single_turn
"""

import json
import random
import re
import sys


def score(completion: str, row: dict) -> dict:
    """1 when the last number of the reply is the answer, and .1 for a short one."""
    numbers = re.findall(r"-?\d+", completion[-100:])
    right = bool(numbers) and numbers[-1] == str(row["answer"])
    short = len(completion) <= 20
    return {"reward": right + 0.1 * short, "right": right, "short": short}


def main(path: str, count: int = 400) -> None:
    """Write `count` rows; all but `prompt` is for the function alone."""
    rng = random.Random(0)
    with open(path, "w") as file:
        for a, b in ((rng.randint(1, 99), rng.randint(1, 99)) for _ in range(count)):
            prompt = f"What is {a} + {b}? Answer with the number alone."
            file.write(json.dumps({"prompt": prompt, "answer": a + b}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
