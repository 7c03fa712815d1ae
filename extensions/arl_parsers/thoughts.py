"""The tags of thoughts of families of models, each a member of `agentgym_rl.thoughts`."""

from __future__ import annotations

from agentgym_rl.gateway import Thoughts

DEEPSEEK_R1 = Thoughts(("<think>",), ("</think>",), always=True, order=20)
MISTRAL = Thoughts(("[THINK]",), ("[/THINK]",), order=30)
SEED_OSS = Thoughts(("<seed:think>",), ("</seed:think>",), order=40)
GEMMA4 = Thoughts(("<|channel>thought",), ("<channel|>",), order=50)
GRANITE = Thoughts(
    ("Here is my thought process:", "Here's my thought process:"),
    ("Here is my response:", "Here's my response:"),
    order=60,
)
