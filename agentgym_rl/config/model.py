"""The section `model`, the policy."""

from __future__ import annotations

from agentgym_rl.core import Section


class ModelConfig(Section):
    """The policy that is trained."""

    short = "path"

    path: str = "bundled"
    """The model: "bundled" (the tiny model of this package that was warmed up for the environment;
    or by name: bundled/math, bundled/tools, bundled/frozenlake, bundled/code, bundled/bugs,
    bundled/tictactoe, bundled/agents), a local folder, or a Hugging Face id; with engine.type
    "openai", the model's name at that URL, with "litellm" PROVIDER/NAME."""
    revision: str | None = None
    """The commit, tag or branch of a Hugging Face id."""
