"""The errors of this package, by cause.

    ArlError
    ├ ConfigError(ValueError)     the user requested something impossible
    ├ EpisodeError                one episode failed; recorded as data in rollout/episode.py
    │  ├ AgentError               the agent's code raised
    │  ├ EnvError                 the environment's code raised
    │  └ InfraError               neither: retried, then dropped, never a reward of 0
    │     ├ SandboxError          the sandbox (not the program in it) failed
    │     │  ├ SandboxUnavailable it cannot work on this machine, as configured
    │     │  ├ SandboxLost        it died, with its files and sessions
    │     │  ├ SandboxStartTimeout no sandbox was available in time
    │     │  └ ImageError         an image cannot be built
    │     ├ VerifierError         the pool that runs verifiers failed (not the verifier)
    │     └ EngineError           the engine or the connection to it failed
    │        └ RequestRefused     the engine works, but refuses this request
    ├ ContextLengthError(EpisodeError, ValueError)   the prompt leaves no room to sample
    ├ TooManyErrors               episodes fail too often for the run to make sense
    ├ WeightsError                a policy version could not be published or loaded
    │  └ AdapterRefused           it is an adapter, which only a publication can merge
    ├ TrainerError                the trainer could not do its step
    ├ StorageError                a file that a run must keep could not be written
    └ ProcessDied                 a supervised child process ended too early

Messages state the event, the actual value, the allowed values and a remedy. All are picklable.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn, cast


def near_names(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to `most` known names that are close to an unknown one, the nearest first."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)


def near_match(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?" for an unknown name that is close to a known one, or ""."""
    near = near_names(name, known)
    return f"; did you mean {near[0]}?" if near else ""


def near_of(
    name: str, known: Iterable[str], *, prefix: str = "", most: int = 1, others: str = "allowed"
) -> str:
    """Return a hint with the nearest matches of an unknown name, or with all names, which `others`
    introduces."""
    names = list(known)
    near = near_names(name, names, most=most, cutoff=0.5 if most == 1 else 0.4)
    if near:
        return f"did you mean {' or '.join(prefix + it for it in near)}?"
    return f"{others}: {', '.join(names) or 'none'}"


def too_slow(what: str, key: str, limit_s: float) -> str:
    """Return the message for a passed deadline: its length, the configuration key that sets it, and
    the remedy if the machine is only slow."""
    return (
        f"{what} took more than {limit_s:g} s ({key}): on a machine or with a model that is only "
        f"slow, give it longer, such as --{key}={4 * limit_s:g}"
    )


class ArlError(Exception):
    """The base class of every error that this package raises on purpose."""


class ConfigError(ArlError, ValueError):
    """An error in the configuration or command line; nothing has been started."""


class EpisodeError(ArlError):
    """A failure of one episode. `rollout/episode.py` turns it into a typed outcome."""


class AgentError(EpisodeError):
    """An error raised by the agent's own code."""


class EnvError(EpisodeError):
    """An error raised by the environment's own code."""


class InfraError(EpisodeError):
    """A failure of infrastructure: the episode is retried, then dropped, never a reward of 0."""


class SandboxError(InfraError):
    """A failure of the sandbox itself (a program failing inside it is a result, not an error)."""


class SandboxUnavailable(SandboxError):
    """The error for a sandbox backend that cannot work on this machine as configured; its message
    has a remedy."""


class SandboxLost(SandboxError):
    """The loss of a sandbox with its files and sessions; the same work may succeed in another."""


class SandboxStartTimeout(SandboxError):
    """The error if no sandbox was available in time."""


class ImageError(SandboxError):
    """The error for an image that cannot be built here, however often it is tried."""


class VerifierError(InfraError):
    """A failure of the pool that runs verifiers; a failure of a verifier itself is a result."""


class EngineError(InfraError):
    """A failure of the inference engine or of the connection to it."""


class RequestRefused(EngineError):
    """The refusal of a request that no engine of this kind would accept."""


class ContextLengthError(EpisodeError, ValueError):
    """The error for a prompt that leaves no room to sample within the model's context length."""


class TooManyErrors(ArlError):
    """The error if episodes fail too often for the run to make sense; states the main cause."""

    @classmethod
    def of(cls, text: str, *, what: str, outcome: str, env_id: str) -> TooManyErrors:
        """Return the error with the last episode's `text`, then their number (`what`), and for an
        environment's fault the command that tries it by itself."""
        hint = f"\n`arl check {env_id}` tries the environment by itself"
        return cls(f"{text}\n{what}{hint if outcome == 'env_error' and env_id else ''}")


class WeightsError(ArlError):
    """A failure to write, verify or load a policy version; the old one keeps serving."""


class AdapterRefused(WeightsError):
    """The refusal of a version that is an adapter by a client that cannot merge it into the weights
    of its server; a publication can."""


class TrainerError(ArlError):
    """The failure of the trainer to complete a step."""


class StorageError(ArlError):
    """A failure to write a file that a run must keep: a full or broken disk."""

    @classmethod
    def of(cls, path: Path, error: Exception) -> StorageError:
        """Return the error of a file that is only appended to, or is replaced atomically."""
        return cls(
            f"{path} cannot be written: {error}. Nothing that was recorded before is lost: make "
            "room on its disk and go on, a run with `arl train --resume`, an evaluation with the "
            "same --out"
        )


class ProcessDied(ArlError, RuntimeError):
    """The error for a supervised child process that ended too early."""


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors inside nested groups, in their order; for any other error, that error."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for inner in group.exceptions for leaf in leaves(inner)]


_CAUSES = (KeyboardInterrupt, ProcessDied, ConfigError, ArlError, TimeoutError, OSError)
"""The kinds of errors that explain others, the most important first: a process that died causes the
others."""


def cause_of(error: BaseException) -> BaseException:
    """Return the error inside nested groups that explains the others."""
    found = leaves(error)
    causes = (leaf for kind in _CAUSES for leaf in found if isinstance(leaf, kind))
    return next(causes, found[0])


def raise_cause(error: BaseException) -> NoReturn:
    """Raise the error inside nested groups that explains the others, with its own cause. The groups
    are left out of its traceback, which would have the stack of every task; an `ArlError` has a
    complete message, and neither a cause nor our own functions in its traceback."""
    cause = cause_of(error)
    if isinstance(cause, ArlError):
        raise cause.with_traceback(None) from None
    before = None if cause.__suppress_context__ else cause.__context__
    raise cause from cause.__cause__ or before
