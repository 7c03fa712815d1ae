"""The verdicts on a submission."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """A verdict on a submission: that of the first failed test."""

    ACCEPTED = "accepted"
    """A pass of every hidden test."""
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    """A run that raised, exited with another code than 0, was killed, or printed without end."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    NO_CODE = "no_code"
    """A message without a program."""
    INFRA_ERROR = "infra_error"
    """A failure of the sandbox without fault of the submission: no reward is known."""
