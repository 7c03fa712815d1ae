"""Agents that restrict what their model may say (tests/e2e puts this on the path)."""

import json
from typing import Any

from agentgym_rl import Agent


def form(answer: int) -> dict[str, Any]:
    """JSON of a way and one of three answers, of which one is right."""
    schema = {
        "type": "object",
        "properties": {
            "way": {"type": "array", "items": {"enum": ["add", "multiply"]}, "maxItems": 2},
            "answer": {"enum": [answer - 1, answer, answer + 1]},
        },
        "required": ["way", "answer"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


class Demanding(Agent):
    """Asks for a call of the calculator, and then for an answer as JSON."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        fixed = {"model": model, "tools": env.tools}
        reply = await client.chat.completions.create(
            messages=messages, tool_choice="required", **fixed
        )
        said = reply.choices[0].message.model_dump(exclude_none=True)
        step = await env.step(said)
        messages += [said, *step.observation]
        reply = await client.chat.completions.create(
            messages=messages,
            tool_choice="none",
            response_format=form(int(task.data["answer"])),
            **fixed,
        )
        answer = json.loads(reply.choices[0].message.content)["answer"]
        await env.step({"role": "assistant", "content": rf"\boxed{{{answer}}}"})


class Choosy(Agent):
    """Leaves out unlikely tokens, in another way at each turn."""

    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        cuts = [{"top_p": 0.9}, {"extra_body": {"top_k": 20, "min_p": 0.01}}, {"top_p": 0.95}]
        for cut in cuts:
            reply = await client.chat.completions.create(
                model=model, messages=messages, tools=env.tools, **cut
            )
            said = reply.choices[0].message.model_dump(exclude_none=True)
            step = await env.step(said)
            if step.terminated or step.truncated:
                return
            messages += [said, *step.observation]
