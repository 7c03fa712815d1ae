"""Conversations that show a model what programs look like, with the mistakes beginners make.

python examples/code_demos.py demos.jsonl
arl train --config examples/code_tiny.toml --init sft --data demos.jsonl

The task is one of the code environment's: count the runs of at least N equal neighbours. Three
demonstrations in ten are right; the others count with another N, forget the last run, or take "at
least" for "more than". What is right is for reinforcement learning to find out.
"""

import asyncio
import json
import random
import re
import sys

import agentgym_rl

RIGHT = 0.3
MISTAKES = (
    (r"if i - start >= least", "if i - start > least"),
    (r"if i == len\(numbers\) or numbers", "if numbers"),
    (r"least = \d+", "least = {number}"),
)


def beginner(program: str, rng: random.Random) -> str:
    """The program as it is, or with one mistake."""
    if rng.random() < RIGHT:
        return program
    right, wrong = rng.choice(MISTAKES)
    return re.sub(right, wrong.format(number=rng.randint(1, 8)), program)


async def demonstrations(count: int):
    rng = random.Random(0)
    async with agentgym_rl.make_sandbox("local") as sandboxes:
        env = agentgym_rl.make("code", families=["count_runs"], form="call", tool=False)
        for seed in range(count):
            asked, _ = await env.reset(seed=seed, options={"sandboxes": sandboxes})
            (solved,) = env.unwrapped.solve()
            yield [*asked, {"role": "assistant", "content": beginner(solved["content"], rng)}]
        await env.close()


async def main(path: str, count: int = 400) -> None:
    with open(path, "w") as file:
        async for messages in demonstrations(count):
            file.write(json.dumps({"messages": messages}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
