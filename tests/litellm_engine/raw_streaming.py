"""An agent that asks for a stream, and puts the reply together itself."""

from arl_endpoints.session import StreamedMessage

from agentgym_rl import Agent


class RawStreaming(Agent):
    async def run(self, env, client, *, model, task):
        messages, _ = await env.reset()
        while True:
            stream = await client.chat.completions.create(
                model=model, messages=messages, tools=list(env.tools), stream=True
            )
            message = StreamedMessage()
            async for chunk in stream:
                message.add(chunk.model_dump())
            action = message.whole()
            step = await env.step(action)
            if step.terminated or step.truncated:
                return
            messages = [*messages, action, *step.observation]
