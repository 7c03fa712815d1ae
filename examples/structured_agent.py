"""An agent without a framework whose last reply is JSON of a schema (`response_format`).

PYTHONPATH=examples arl train --env math --agent structured_agent:Structured --model bundled/agents
"""

import json

from agentgym_rl import Agent

ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER, "strict": True}}


class Structured(Agent):
    """Calls the environment's tools, and then replies with JSON."""

    async def run(self, env, client, *, model, task):
        *_, question = (await env.reset())[0]
        system = {"role": "system", "content": "Solve the problem. Answer as JSON."}
        messages = [system, question]
        while True:
            reply = await client.chat.completions.create(
                model=model, messages=messages, tools=list(env.tools), response_format=FORM
            )
            said = reply.choices[0].message.model_dump(exclude_none=True)
            if not said.get("tool_calls"):
                answer = json.loads(said["content"])["answer"]
                said = {"role": "assistant", "content": rf"\boxed{{{answer}}}"}
            step = await env.step(said)
            if step.terminated or step.truncated:
                return
            messages += [said, *step.observation]
