"""An agent that fails until a file exists (tests/e2e puts this on the path)."""

import os

from agentgym_rl import Agent


class Failing(Agent):
    """An agent that raises in episodes of the split FAILS_IN while there is no file FIXED."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        reply = await client.chat.completions.create(
            model=model, messages=messages, tools=env.tools
        )
        if os.environ["FAILS_IN"] in task.id and not os.path.exists(os.environ["FIXED"]):  # noqa: ASYNC240
            raise KeyError("plan")
        await env.step(reply.choices[0].message.model_dump(exclude_none=True))
