"""What the Codex CLI sends (0.171, recorded, texts and schemas shortened), turn after turn.

It streams, stores nothing, sends everything again each time under ids of ours and of its own,
groups tools in a namespace, and offers a search that the service would run. To models that it
knows it offers tools in an item, and one of them takes a text.

The program itself plays where it is installed (`npm install @openai/codex`): in the path, or as
`ARL_CODEX` names it.
"""

import asyncio
import os
import shutil

import pytest

PATH = "/v1/responses"
STRING = {"type": "string"}
SPAWN = '<tool_call>\n{"name": "spawn_agent", "arguments": {"message": "é"}}\n</tool_call>'
EXEC = '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "ls"}}\n</tool_call>'


def _function(name, argument):
    schema = {"type": "object", "properties": {argument: STRING}, "required": [argument]}
    schema["additionalProperties"] = False
    head = {"type": "function", "name": name, "description": "Does it."}
    return {**head, "strict": False, "parameters": schema}


GROUP = {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents."}
REQUEST = {
    "model": "tiny",
    "tools": [
        _function("exec_command", "cmd"),
        {**GROUP, "tools": [_function("spawn_agent", "message")]},
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2027b-ceb2-7e31-947b-abaa2aa6c2ef",
    "client_metadata": {"session_id": "01a2027b-ceb2-7e31-947b-abaa2aa6c2ef"},
}


def _message(role, text, number):
    part = {"type": "input_text", "text": text}
    return {"type": "message", "id": f"msg_01a2027b-cf1a-7033-{number}", "role": role} | {
        "content": [part]
    }


FIRST = [
    _message("developer", "You are a coding agent.", 1),
    _message("developer", "<permissions>", 2),
    _message("user", "<environment_context>", 3),
    _message("user", "What is in this folder?", 4),
]


def _echoed(item):
    """An output item as Codex sends it back: without status, and text parts with nothing else."""
    item = {name: value for name, value in item.items() if name != "status"}
    if item["type"] == "message":
        item["content"] = [{"type": "output_text", "text": p["text"]} for p in item["content"]]
    return item


@pytest.fixture
def played(stage, spell, words):
    texts = [f"I look.\n{EXEC}", f"{SPAWN}\n{EXEC}", "All done é."]
    scene = stage([spell.bytewise(text + words.END) for text in texts])
    session, said, items = scene.open(), list(FIRST), []
    for number in range(len(texts)):
        answer = asyncio.run(scene.post(session, path=PATH, **REQUEST, input=said))
        done = [e["item"] for e in answer.typed_events if e["type"] == "response.output_item.done"]
        calls = [item for item in done if item["type"] == "function_call"]
        said += map(_echoed, done)
        said += [
            {
                **{"type": "function_call_output", "id": f"fco_01a2027b-d0d5-{number}"},
                **{"call_id": call["call_id"], "output": "Chunk ID: 1\nOutput:\na.txt\n"},
            }
            for call in calls
        ]
        items += done
    return scene, session, items


def test_its_session_is_one_exact_row(played, words):
    scene, session, _ = played
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert (record.counters["forks"], record.num_turns) == (0, 3)
    assert record.counters["omitted_tools"] == 1


def test_a_call_of_a_namespace_names_it(played):
    _, _, items = played
    calls = [item for item in items if item["type"] == "function_call"]
    named = [(call["name"], call.get("namespace")) for call in calls]
    assert named == [
        ("exec_command", None),
        ("spawn_agent", "multi_agent_v1"),
        ("exec_command", None),
    ]


CODEX = os.environ.get("ARL_CODEX") or shutil.which("codex")
LOOK = '<tool_call>\n{"name": "view_image", "arguments": {"path": "PATH"}}\n</tool_call>'
SCRIPT = "text(String(6 * 7))"
RUN = f'<tool_call>\n{{"name": "exec", "arguments": {{"input": "{SCRIPT}"}}}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "exec", "arguments": "6 *"}\n</tool_call>'


async def _codex(scene, session, folder, model):
    """Play a task with the program; return its output."""
    async with scene.gateway.serve() as url:
        provider = f'{{name="arl",base_url="{url}",env_key="ARL_KEY",wire_api="responses"}}'
        options = ["-c", "model_provider=arl", "-c", f"model_providers.arl={provider}"]
        sandbox = ["--skip-git-repo-check", "-s", "danger-full-access", "-m", model]
        own = {"ARL_KEY": session.key, "CODEX_HOME": str(folder), "PATH": os.environ["PATH"]}
        program = await asyncio.create_subprocess_exec(
            *[CODEX, "exec", *sandbox, *options, "What is in this folder?"],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder,
            env={**own, "HOME": str(folder)},
        )
        said, _ = await asyncio.wait_for(program.communicate(), 100)
        return said.decode()


@pytest.mark.slow
@pytest.mark.skipif(CODEX is None, reason="codex is not installed (npm install @openai/codex)")
@pytest.mark.parametrize(
    ("model", "texts", "counted"),
    [
        ("tiny", [EXEC, LOOK, "All done."], {"omitted_tools": 1, "placeholders": 1}),
        ("gpt-6.2-sol", [RUN, BROKEN, "All done."], {"malformed_calls": 1}),
    ],
)
def test_the_program_itself_makes_one_row(stage, spell, words, tmp_path, model, texts, counted):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (640, 480)).save(tmp_path / "a.png")
    texts = [text.replace("PATH", str(tmp_path / "a.png")) for text in texts]
    script = [spell.bytewise(text + words.END) for text in texts]
    scene = stage(script, max_model_len=200_000)
    session = scene.open(turn_timeout_s=60)
    said = asyncio.run(_codex(scene, session, tmp_path, model))
    record = scene.gateway.close_session(session)
    assert record.num_turns == 3, said
    words.check_exact(record.rows, scene.engine.journal)
    assert {name: record.counters[name] for name in counted} == counted
    seen = scene.gateway._chat.text(scene.engine.journal[-1].prompt)
    assert ("[image 640×480]" if model == "tiny" else "Output:\n42") in seen
