"""What can go wrong, and whose fault it is.

    ArlError
    ├ ConfigError(ValueError)     the user asked for something impossible
    ├ EpisodeError                one episode failed; recorded as data in episode.py
    │  ├ AgentError               the agent's code raised
    │  ├ EnvError                 the environment's code raised
    │  └ InfraError               neither: retried, then dropped, never a reward of 0
    │     ├ SandboxError          the sandbox (not the program in it) failed
    │     │  ├ SandboxUnavailable it cannot work on this machine, as configured
    │     │  ├ SandboxLost        it died, with its files and sessions
    │     │  └ SandboxStartTimeout none was to be had in time
    │     ├ VerifierError         the pool that runs verifiers failed (not what it ran)
    │     └ EngineError           the engine or the way to it failed
    │        └ RequestRefused     the engine works, and takes no such request
    ├ ContextLengthError(EpisodeError, ValueError)   the prompt leaves no room to sample
    ├ TooManyErrors               episodes fail too often for the run to make sense
    ├ WeightsError                a policy version could not be published or loaded
    ├ TrainerError                the trainer could not do its step
    ├ StorageError                what a run must keep could not be written
    └ ProcessDied                 a supervised child process ended before its time

Messages say: what happened, what was got, what is allowed, what to do. All are picklable.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast


def too_slow(what: str, key: str, limit_s: float) -> str:
    """Return what to say of a deadline that has passed: how long it was, which key of the
    configuration sets it, and what to do where the machine is merely slow."""
    return (
        f"{what} took more than {limit_s:g} s ({key}): on a machine or with a model that is only "
        f"slow, give it longer, such as --{key}={4 * limit_s:g}"
    )


class ArlError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(ArlError, ValueError):
    """The configuration or command line is wrong; nothing has been started."""


class EpisodeError(ArlError):
    """One episode failed. `episode.py` turns it into a typed outcome."""


class AgentError(EpisodeError):
    """The agent's own code raised."""


class EnvError(EpisodeError):
    """The environment's own code raised."""


class InfraError(EpisodeError):
    """Infrastructure failed: the episode is retried, then dropped; it is never a reward of 0."""


class SandboxError(InfraError):
    """The sandbox itself failed (a program failing inside it is a result, not an error)."""


class SandboxUnavailable(SandboxError):
    """A sandbox backend cannot work on this machine, as configured; says what to do about it."""


class SandboxLost(SandboxError):
    """A sandbox died, with its files and sessions; the same work may succeed in another one."""


class SandboxStartTimeout(SandboxError):
    """No sandbox was to be had in time."""


class VerifierError(InfraError):
    """The pool that runs verifiers failed; what a verifier itself does is a result."""


class EngineError(InfraError):
    """The inference engine, or the connection to it, failed."""


class RequestRefused(EngineError):
    """The engine takes no such request; another engine of the kind would not either."""


class ContextLengthError(EpisodeError, ValueError):
    """A prompt leaves no room to sample within the model's context length."""


class TooManyErrors(ArlError):
    """Episodes fail too often for the run to make sense; says of what most of them do."""


class WeightsError(ArlError):
    """A policy version could not be written, verified or loaded; the old one keeps serving."""


class TrainerError(ArlError):
    """The trainer could not complete a step."""


class StorageError(ArlError):
    """A file that a run must keep could not be written: a full or broken disk."""

    @classmethod
    def of(cls, path: Path, error: Exception) -> StorageError:
        """Of a file that only ever grows, or is put in place whole."""
        return cls(
            f"{path} cannot be written: {error}. Nothing that was recorded before is lost: make "
            "room on its disk and go on, a run with `arl train --resume`, an evaluation with the "
            "same --out"
        )


class ProcessDied(ArlError, RuntimeError):
    """A supervised child process ended before its time."""


def leaves(error: BaseException) -> list[BaseException]:
    """The errors inside nested groups, in their order; of any other error that one alone."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for inner in group.exceptions for leaf in leaves(inner)]
