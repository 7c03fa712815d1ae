"""The chat templates of the episodes: four families' manners, on one tokenizer."""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer

from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gateway.template.template import ChatTemplate

sys.path.append(str(Path(__file__).parents[2] / "tests" / "gateway"))
from families import CHATML, GLM, QWEN3

OPENED = QWEN3 + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
"""The template QWEN3 with replies that begin inside a thought."""

_TEMPLATES = {"qwen3": QWEN3, "opened": OPENED, "glm": GLM, "chatml": CHATML}
ENDS = ("<|im_end|>", "<|user|>", "<|observation|>")
"""The tokens that end a reply in some template."""


def chats(tokenizer: Tokenizer) -> dict[str, ChatFormat]:
    """Return the chat formats by name. In `glm` no token closes a turn; `chatml` has no tools."""
    ends = [tokenizer.token_to_id(end) for end in ENDS]
    return {
        name: ChatFormat(
            tokenizer, ChatTemplate(source, special_tokens={"eos_token": ENDS[0]}), ends
        )
        for name, source in _TEMPLATES.items()
    }
