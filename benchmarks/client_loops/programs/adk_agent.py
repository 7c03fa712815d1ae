"""Google ADK, through LiteLLM."""

import asyncio

from _problem import FIRST, KEY, MODEL, SECOND, SYSTEM, URL, calculator
from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, Part

model = LiteLlm(f"openai/{MODEL}", api_base=URL, api_key=KEY)
agent = LlmAgent(name="helper", model=model, instruction=SYSTEM, tools=[calculator])


async def main() -> None:
    runner = InMemoryRunner(agent, app_name="program")
    session = await runner.session_service.create_session(app_name="program", user_id="u")
    said = ""
    for text in (FIRST, SECOND):
        asked = Content(role="user", parts=[Part(text=text)])
        events = runner.run_async(user_id="u", session_id=session.id, new_message=asked)
        async for event in events:
            parts = event.content.parts if event.content else None
            said = "".join(part.text or "" for part in parts or ()) or said
    print(said)


asyncio.run(main())
