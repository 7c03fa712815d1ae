"""The typed reading of task.toml: the keys that are applied here, those that are refused by name,
and those without an effect.

A key that is in none of the three groups is refused as unknown, so nothing is silently ignored.
`tests/envs/harbor/schema.json` lists the fields of Harbor's own schema; a test compares it with
these groups.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from agentgym_rl import ConfigError

from .migration import migrate, plain
from .options import MAX_S

NetworkMode = Literal["no-network", "public", "allowlist"]
_ROOT = (None, "root", 0, "0")
_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_ODD = re.compile(r"""[\x00-\x1f\x7f$"'`\\]""")
_NOT_FILES = ("/proc", "/sys", "/dev")
MAX_REWARD = 1e6
OWN = ("arl_generated", "arl_keep", "arl_nonce", "arl_reward_range")
"""The keys of our own in [metadata]."""
Seconds = Annotated[float, Field(ge=0, le=MAX_S)]
SomeSeconds = Annotated[float, Field(gt=0, le=MAX_S)]
Variables = dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], str]
Megabytes = Annotated[int, Field(gt=0, le=1 << 24)]

_STEPS = "tasks of several steps are not played"
_PLACE = {
    **dict.fromkeys(("gpus", "gpu_types", "tpu"), "sandboxes have no accelerator"),
    "mcp_servers": "MCP servers of a task are not started",
    "skills_dir": "agents here have no folder of skills",
}
REFUSED = {
    **{
        f"{section}.{key}": why
        for section in ("environment", "verifier.environment")
        for key, why in _PLACE.items()
    },
    "verifier.environment.healthcheck": "only the agent's environment has a healthcheck",
    "verifier.collect": "collect hooks belong to compose services, which are not started",
    "steps": _STEPS,
    "multi_step_reward_strategy": _STEPS,
    "artifacts.service": "compose services are not started",
}
"""The fields that a task must not set (beyond an empty value), with the reason."""

_CPUS = "sandboxes share the processors; CPU seconds are limited by the timeouts"
HARMLESS = {
    "schema_version": "every version up to 1.4 is read alike",
    "version": "the old name of schema_version",
    "source": "the origin of a task, for people",
    "task.version": "for people",
    "task.description": "for people",
    "task.authors": "for people",
    "task.keywords": "for people",
    "artifacts.destination": "the place of an artifact on the host of Harbor's own runner",
    "environment.cpus": _CPUS,
    "verifier.environment.cpus": _CPUS,
}
"""The fields that may have any value and have no effect here, with the reason."""

_LEGACY = tuple(
    f"{section}.{key}"
    for section in ("environment", "verifier.environment")
    for key in ("memory", "storage", "allow_internet")
)
"""The deprecated names of read fields."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Network(_Section):
    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] | None = None


class AgentPart(_Network):
    """The section [agent]."""

    timeout_sec: SomeSeconds | None = None
    """The seconds that all tool calls of an episode may take together; None: the option's value."""
    user: str | int | None = None


class Healthcheck(_Section):
    """The section [environment.healthcheck]: a command that must succeed before the agent acts."""

    command: str
    interval_sec: Seconds = 5.0
    timeout_sec: SomeSeconds = 30.0
    start_period_sec: Seconds = 0.0
    start_interval_sec: Seconds = 5.0
    retries: int = Field(default=3, ge=1)


class ContainerKeys(_Network):
    """The keys that [environment] and [verifier.environment] have in common."""

    build_timeout_sec: SomeSeconds = 600.0
    docker_image: str | None = None
    """The name of a published image, for a task without environment/Dockerfile: an image with both
    is built, since sandboxes download nothing."""
    os: Literal["linux"] = "linux"
    memory_mb: Megabytes | None = None
    storage_mb: Megabytes | None = None
    env: Variables = Field(default_factory=dict)
    """The variables of every program."""
    workdir: str | None = None
    """The folder in which programs start, instead of the Dockerfile's WORKDIR."""

    @field_validator("os", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not PurePosixPath(value).is_absolute():
            raise ValueError("expected an absolute path")
        if value is not None and (".." in PurePosixPath(value).parts or _ODD.search(value)):
            raise ValueError("expected a path without '..', '$', quotes and line ends")
        return value

    @field_validator("docker_image")
    @classmethod
    def _one_word(cls, value: str | None) -> str | None:
        if value is not None and len(value.split()) > 1:
            raise ValueError("expected the name of one image")
        return value


class EnvironmentPart(ContainerKeys):
    """The section [environment]."""

    healthcheck: Healthcheck | None = None


class VerifierPart(_Network):
    """The section [verifier]."""

    timeout_sec: SomeSeconds = 600.0
    env: Variables = Field(default_factory=dict)
    """Further variables of tests/test.sh."""
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    """The image of the tests, and the files that they get; None: shared, unless there is an
    `environment`. A fresh sandbox in both modes."""
    environment: ContainerKeys | None = None
    """The place of separate tests; None: as that of the task."""

    @model_validator(mode="after")
    def _is_of_one_mind(self) -> Self:
        if self.environment is not None and self.environment_mode == "shared":
            raise ValueError("environment_mode 'shared' contradicts [verifier.environment]")
        return self


class SolutionPart(_Section):
    """The section [solution]."""

    env: Variables = Field(default_factory=dict)
    """Further variables of solution/solve.sh."""


class PackagePart(_Section):
    """The section [task]."""

    name: str


class Artifact(_Section):
    """A file or folder that the tests need: besides the work folder, or, in separate mode, all that
    they get."""

    source: str
    exclude: tuple[str, ...] = ()
    """The patterns of files and folders below `source` that separate tests do not get, as those of
    `tar --exclude`."""

    def has(self, path: str, work_dir: str) -> bool:
        """Return whether separate tests get the file with this absolute path."""
        source = PurePosixPath(posixpath.normpath(posixpath.join(work_dir, self.source)))
        if not PurePosixPath(path).is_relative_to(source):
            return False
        parts = PurePosixPath(path).relative_to(source).parts
        spans = [
            "/".join(parts[begin:end])
            for begin in range(len(parts))
            for end in range(begin + 1, len(parts) + 1)
        ]
        patterns = [each.removeprefix("./").rstrip("/") for each in self.exclude]
        return not any(fnmatchcase(span, pattern) for pattern in patterns for span in spans)

    @field_validator("source")
    @classmethod
    def _inside(cls, value: str) -> str:
        if not value or ".." in PurePosixPath(value).parts:
            raise ValueError("expected a path without '..', such as '.' for the work folder")
        return value


class TaskConfig(_Section):
    """The content of a task.toml that has an effect here."""

    task: PackagePart | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: AgentPart = AgentPart()
    environment: EnvironmentPart = EnvironmentPart()
    verifier: VerifierPart = VerifierPart()
    solution: SolutionPart = SolutionPart()
    artifacts: tuple[Artifact, ...] = ()

    @property
    def is_separate(self) -> bool:
        """Return whether the tests get the artifacts alone, perhaps in an image of their own."""
        mode = self.verifier.environment_mode
        return mode == "separate" or (mode is None and self.verifier.environment is not None)

    @property
    def tests_place(self) -> ContainerKeys:
        """Return the settings of the place in which the tests run."""
        return self.verifier.environment or self.environment

    @property
    def needs_nonce(self) -> bool:
        """Return whether only a reward file with the verification's nonce counts."""
        return bool(self.metadata.get("arl_nonce", False))

    @property
    def is_generated(self) -> bool:
        """Return whether a generator here made the task, so that its tests are known to work, and
        isolate the programs that they run."""
        return bool(self.metadata.get("arl_generated", False))

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return the least and the full reward that the tests may give."""
        low, high = self.metadata.get("arl_reward_range", (0.0, 1.0))
        return float(low), float(high)

    @property
    def kept(self) -> tuple[str, ...]:
        """Return the patterns of files that the agent may add or change although test runners load
        them by themselves (`hooks.py`)."""
        return tuple(self.metadata.get("arl_keep", ()))

    @field_validator("metadata")
    @classmethod
    def _own_words(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in ("arl_nonce", "arl_generated"):
            if not isinstance(value.get(name, False), bool):
                raise ValueError(f"{name}: expected true or false")
        found = value.get("arl_reward_range", [0, 1])
        if not _is_range(found):
            raise ValueError(
                f"arl_reward_range: got {found!r:.60}; expected the least and the full reward, as "
                f"in [-1, 1], both from -{MAX_REWARD:.0f} to {MAX_REWARD:.0f}"
            )
        if odd := sorted(name for name in value if name.startswith("arl_") and name not in OWN):
            raise ValueError(f"{odd[0]}: no such key; allowed: {', '.join(OWN)}")
        keep = value.get("arl_keep", [])
        if not (isinstance(keep, list) and all(isinstance(each, str) for each in keep)):
            raise ValueError('arl_keep: expected a list such as ["pyproject.toml"]')
        return value


def _is_range(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in value):
        return False
    return -MAX_REWARD <= value[0] < value[1] <= MAX_REWARD


def read_config(raw: Mapping[str, Any], *, name: str, offline: bool = False) -> TaskConfig:
    """Return the configuration of the task called `name`.

    Args:
        raw: The parsed task.toml.
        offline: Play a task that requires a network although sandboxes have none.

    Raises:
        ConfigError: a key is unknown or refused, or a value is out of range; the message names the
            task and the key.
    """
    try:
        data = plain(raw)
        migrate(data)
        for path, value in _leaves(data):
            _refuse(path, value)
        config = TaskConfig.model_validate(_known(data))
    except ValidationError as error:
        raise ConfigError(f"task {name}: task.toml: {_first(error)}") from error
    except ValueError as error:
        raise ConfigError(f"task {name}: task.toml: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"task {name}: task.toml: its tables are nested too deeply") from error
    if problem := _unmet(config, offline):
        raise ConfigError(f"task {name}: task.toml: {problem}")
    return config


def resolved(values: Mapping[str, str]) -> dict[str, str]:
    """Return variables with `${NAME:-default}` replaced by its default.

    Raises:
        ValueError: a variable is taken from the host, which tasks may not read.
    """
    return {key: _TEMPLATE.sub(_default, value) for key, value in values.items()}


def _default(found: re.Match[str]) -> str:
    if found[2] is None:
        raise ValueError(
            f"${{{found[1]}}} is a variable of the host, which tasks may not read: write its value "
            f"in task.toml, or a default, as in ${{{found[1]}:-value}}"
        )
    return found[2]


def _leaves(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted path; items of a list have the path of the list."""
    for key, value in data.items():
        here = f"{path}.{key}" if path else str(key)
        yield here, value
        if here == "metadata":
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from _leaves(item, here)


def _refuse(path: str, value: Any) -> None:
    empty = (None, 0, "", [], {}, "main") if path == "artifacts.service" else (None, 0, "", [], {})
    if path in REFUSED and value not in empty:
        raise ValueError(f"{path}: {REFUSED[path]}")


def _known(data: Any, path: str = "") -> Any:
    """Return the data without the fields that are refused when set, or harmless."""
    if isinstance(data, list):
        return [_known(item, path) for item in data]
    if not isinstance(data, dict) or path == "metadata":
        return data
    found = {f"{path}.{key}" if path else key: key for key in data}
    left = {
        here: key for here, key in found.items() if here not in REFUSED and here not in HARMLESS
    }
    return {key: _known(data[key], here) for here, key in left.items()}


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        return f"{place}: Harbor's format has no such key"
    if place == "environment.os":
        return f"environment.os: got {found['input']!r:.60}; only linux tasks can be played"
    return f"{place}: got {found['input']!r:.60}; {found['msg']}"


def _unmet(config: TaskConfig, offline: bool) -> str:
    """Return the first requirement that no sandbox can meet; "" if there is none."""
    environment = config.environment
    for section, part in (("agent", config.agent), ("verifier", config.verifier)):
        if part.user not in _ROOT:
            return (
                f"{section}.user: got {part.user!r}; every program runs as one user: leave it out"
            )
    if (found := _network(config)) and not offline:
        return (
            f"{found}; sandboxes have no network: --env.options.offline=true plays the task "
            "without one"
        )
    for section, env in {
        "environment": environment.env,
        "verifier": config.verifier.env,
        "verifier.environment": config.tests_place.env,
        "solution": config.solution.env,
    }.items():
        try:
            resolved(env)
        except ValueError as error:
            return f"{section}.env: {error}"
    for artifact in config.artifacts:
        if not PurePosixPath(artifact.source).is_absolute():
            continue
        first = "/" + artifact.source.strip("/").partition("/")[0]
        if first == "/" or first in _NOT_FILES:
            return f"artifacts: {artifact.source!r} is no folder of files"
    return "" if environment.workdir != "/" else "environment.workdir: '/' is no work folder"


def _network(config: TaskConfig) -> str:
    """Return the requirement of a network; "" if there is none.

    Harbor writes network_mode = "public", its default, into the [environment] of any task.
    """
    demands: dict[str, tuple[_Network, tuple[str | None, ...]]] = {
        "environment": (config.environment, (None, "no-network", "public")),
        "verifier.environment": (config.tests_place, (None, "no-network", "public")),
        "agent": (config.agent, (None, "no-network")),
        "verifier": (config.verifier, (None, "no-network")),
    }
    for section, (part, modest) in demands.items():
        if part.network_mode not in modest:
            return f"{section}.network_mode: {part.network_mode!r}"
    return ""
