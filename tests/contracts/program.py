"""A program as an agent: asks once, repeats what the model said. Imports little, to be quick."""

import json
import os
import urllib.request
from pathlib import Path

task = json.loads(Path(os.environ["ARL_TASK_FILE"]).read_text())
body = {"model": os.environ["ARL_MODEL"], "messages": task["messages"]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.urlopen(request) as reply:
    print(json.load(reply)["choices"][0]["message"]["content"])
