"""An agent of one's own: any program that talks to an OpenAI client.

PYTHONPATH=examples arl train --env math --agent own_agent:Patient
"""

from agentgym_rl import Agent


class Patient(Agent):
    """Asks, acts, reads what came back, and asks again."""

    def __init__(self, *, max_turns=4):
        self.max_turns = max_turns

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        tools = {"tools": list(env.tools)} if env.tools else {}
        for _ in range(self.max_turns):
            reply = await client.chat.completions.create(model=model, messages=messages, **tools)
            action = reply.choices[0].message.model_dump(exclude_none=True)
            step = await env.step(action)
            if step.terminated or step.truncated:
                return
            messages = [*messages, action, *step.observation]
