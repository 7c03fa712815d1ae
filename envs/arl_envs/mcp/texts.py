"""The conversion of MCP's tools and results to the format of the OpenAI API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentgym_rl.core.chat import ToolSpec

if TYPE_CHECKING:  # an optional extra, which takes most of a second to import
    from mcp.types import CallToolResult, Tool


def tool_spec(tool: Tool) -> ToolSpec:
    """Return the OpenAI function tool for a tool of a server."""
    function = {
        "name": tool.name,
        "description": tool.description or tool.title or "",
        "parameters": tool.input_schema,
    }
    return {"type": "function", "function": function}


def result_text(result: CallToolResult, *, max_chars: int) -> str:
    """Return a tool's result, a paragraph per block; blocks that are no text are only named.

    The text has at most `max_chars` characters: the middle of a longer one is left out.
    """
    blocks = [
        block.text if block.type == "text" else f"({block.type}: not shown)"
        for block in result.content
    ]
    text = "\n\n".join(blocks) or "(no output)"
    if len(text) <= max_chars:
        return text
    half = max(1, (max_chars - 7) // 2)
    return f"{text[:half]} [...] {text[-half:]}"
