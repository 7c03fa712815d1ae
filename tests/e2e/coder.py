"""Agents of the code environment who know more than their model (tests/e2e puts this on the path).

The bundled model cannot write programs. These ask it all the same, so that there is something to
train on, and submit what they please.
"""

import json
from typing import Any

from arl_envs.code.generated import solution_of, submission

from agentgym_rl import Agent


def trial(code: str) -> dict[str, Any]:
    """An assistant message that tries a program."""
    function = {"name": "python", "arguments": json.dumps({"code": code})}
    call = {"id": "c", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class Sometimes(Agent):
    """Tries a program, then submits the reference solution after every other reply."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        reply = await client.chat.completions.create(model=model, messages=messages)
        tried = await env.step(trial("print(6 * 7)"))
        assert tried.observation[0]["content"] == "42"
        knows = sum(str(reply.choices[0].message).encode()) % 2 == 0
        await env.step(submission(solution_of(task) if knows else "print('no')"))


class Stops(Agent):
    """Tries a program that stops itself, and then submits the reference solution."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        await client.chat.completions.create(model=model, messages=messages)
        tried = await env.step(trial("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"))
        assert tried.observation[0]["content"] == "[timeout]"
        await env.step(submission(solution_of(task)))
