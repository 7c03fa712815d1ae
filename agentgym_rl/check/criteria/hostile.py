"""Whatever a model says, step answers it."""

from __future__ import annotations

from agentgym_rl.check.criterion import Violation, criterion
from agentgym_rl.check.subject import Subject


@criterion(
    "malformed-actions",
    "step never raises, whatever it is told: broken calls, 1 MB, NULs, lone surrogates",
    fix="treat the action as hostile: action.get(…), check types, answer a bad call with a tool "
    "message that says what is wrong (agentgym_rl.ToolEnv does)",
    needs=("reset-tuple",),
)
async def malformed_actions(subject: Subject) -> None:
    for play in await subject.plays():
        if play.raised is not None:
            said = play.actions[-1:]
            raise Violation(f"{play}: {play.raised!r:.300} of {said!r:.200}")
