"""What is counted of a session."""

from __future__ import annotations

from collections.abc import Mapping

COUNTERS: Mapping[str, str] = {
    "forks": "turns that do not continue the path before them (each makes a row of its own)",
    "forks_new_root": "of these: other system messages, tools or template arguments (a helper)",
    "forks_history_edit": "an earlier message was rewritten, or a summary put in its place",
    "forks_args_edit": "a sampled tool call was rewritten",
    "forks_think_drop": "a user spoke, and the template drops thoughts (`thinking_history`)",
    "forks_template": "the chat template has no local turns, or no place for a message",
    "forks_seam": "the turn ended with a token that the new messages do not begin with",
    "forks_sibling": "the same messages were asked again",
    "forks_n_sibling": "another of the n choices of one request",
    "forks_retry_sibling": "a request was sent again, and sampled again",
    "ambiguous_echoes": "turns that continue one of several that say the same, by a guess",
    "trusted_edits": "turns that continue one whose call the client rewrote (`edited_calls`)",
    "side_turns": "answered turns outside the main lineage",
    "canary_turns": "continued turns that were compared with a rendering of the whole",
    "canary_whitespace": "of these: the first difference is white space",
    "canary_thinking": "a thought that the template would drop or add",
    "canary_arguments": "the arguments of a call",
    "canary_spelling": "the same text in other tokens",
    "canary_other": "anything else",
    "tool_calls": "calls handed to the client",
    "malformed_calls": "of these: not a JSON object with a name and an object of arguments",
    "length_turns": "turns cut by max_tokens or the context length",
    "greedy_turns": "turns sampled at temperature 0, which do not train",
    "constrained_turns": "turns held to a schema or to a forced call, which do not train",
    "undelivered_turns": "turns aborted because the client left or the session was closed",
    "lost_replies": "turns whose client left before it had the reply, and that do not train",
    "joined_retries": "requests sent again by a client that got the answer of the first",
    "overflows": "requests refused because the prompt left no room to sample",
    "prompt_tokens": "of the prompts of answered turns",
    "sampled_tokens": "tokens of answered turns",
    "unknown_version_tokens": "of these: nobody can name the policy, so they do not train",
    "trained_tokens": "of these: with loss_mask True",
    "uncounted_turns": "turns whose tokens somebody else's endpoint did not count",
}
"""What a session counts, all of them always."""
