"""The contract of a kind of engine that runs use: its keys, its servers, their client, and their
checks. A kind is a member of the registry `agentgym_rl.engines`; its name is the value of
`engine.type`."""

from __future__ import annotations

import os
import tempfile
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from agentgym_rl.config import (
    Config,
    EngineConfig,
    OwnEngineConfig,
    ServerEngineConfig,
    WeightsConfig,
)
from agentgym_rl.core import (
    AdapterKeys,
    ConfigError,
    EngineError,
    Interrupt,
    adapter_of,
    load_extension,
)
from agentgym_rl.weights import ReceiverKind

from .builds import Build, Releases, probe_build

if TYPE_CHECKING:
    from agentgym_rl.gym import Probe

    from .client.client import ClientOptions, EngineClient
    from .router.router import Router


@dataclass(frozen=True)
class EngineSetup:
    """The keys on which the engines of a run, and requests to them, depend."""

    engine: OwnEngineConfig
    weights: WeightsConfig
    interrupt: Interrupt
    """The key `rollout.interrupt`."""
    adapter: AdapterKeys | None = None
    """The adapter that engines compute in addition to their base; None: they compute none."""
    model_dir: Path = Path()
    """The folder of the model, which clients of other projects' servers need."""

    @classmethod
    def of(cls, config: Config) -> EngineSetup:
        """Return the setup of the configured run."""
        from agentgym_rl.models import model_folder

        engine, folder = config.own_engine, Path()
        if isinstance(engine, ServerEngineConfig):
            folder = model_folder(config.model, config.env.id)
        served = adapter_of(config, served=True)
        return cls(engine, config.weights, config.rollout.interrupt, served, folder)

    def router(self, on_failure: Callable[[str, EngineError], None]) -> Router:
        """Return a router without engines."""
        from .router.router import make_router

        return make_router(self.engine, interrupt=self.interrupt, on_failure=on_failure)

    def client(self, url: str, incarnation: int = 0, kind: str = "") -> EngineClient:
        """Return a client for a server of the given `kind`, by default of `engine.type`; an
        attached server may be of another kind."""
        return own_kind(kind or self.engine.type).client(url, self, incarnation=incarnation)

    @property
    def python_of_servers(self) -> str | None:
        """Return the interpreter from which the run starts servers of another project (empty: the
        running one); None: it starts none."""
        engine = self.engine
        if not isinstance(engine, ServerEngineConfig) or engine.urls:
            return None
        return engine.python


class Launch(NamedTuple):
    """The configuration, the address and the weights of a server that `arl engine` starts."""

    config: Config
    host: str
    port: int
    index: int
    model_dir: Path
    label: str
    """The label of the weights in the folder."""
    run_dir: Path | None = None
    """The folder of the run, if there is one."""
    journal: Path | None = None
    """The file to which requests are logged; None: they are not."""

    @property
    def engine(self) -> ServerEngineConfig:
        """Return the keys of the engine, which is a server of another project."""
        assert isinstance(self.config.engine, ServerEngineConfig)
        return self.config.engine

    @property
    def adapter(self) -> AdapterKeys | None:
        """Return the adapter that the server computes in addition to its base."""
        return adapter_of(self.config, served=True)

    @property
    def adapter_dir(self) -> Path:
        """Return the folder to which the first adapter of the server is written."""
        return self.run_dir or Path(tempfile.mkdtemp(prefix="arl-"))

    @property
    def flags(self) -> list[str]:
        """Return the flags that servers of all projects have: the address first."""
        engine = self.engine
        parallel = ("--tensor-parallel-size", str(engine.tensor_parallel_size))
        return [
            *("--served-model-name", self.config.model.path),
            *("--host", self.host),
            *("--port", str(self.port)),
            *("--dtype", engine.dtype),
            *("--stream-interval", str(engine.stream_interval)),
            *(parallel if engine.tensor_parallel_size > 1 else ()),
        ]


class OwnKind(ReceiverKind):
    """A kind of engine that a run starts, and whose weights it sets."""

    title: ClassVar[str]
    """The name of the engine, or of its project, for display."""
    reward_model_command: ClassVar[str] = ""
    """The command that serves a classifier, for an error: ", such as `...`"; "": not known."""

    @abstractmethod
    def serve(self, launch: Launch) -> None:
        """Serve the policy at the address until a signal ends this process, or replace this process
        by the server.

        Raises:
            ConfigError: it cannot serve here.
        """

    def client(self, url: str, setup: EngineSetup, *, incarnation: int) -> EngineClient:
        """Return the client of a server at `url`, by default of one with the routes of the embedded
        engine. The keys of the setup may be another kind's, since attached servers can be of any.
        """
        from .client.http_engine import HttpEngine

        return HttpEngine(url, **self.client_options(setup, incarnation=incarnation))

    def client_options(self, setup: EngineSetup, *, incarnation: int) -> ClientOptions:
        """Return the options that every client of a server of this kind has."""
        return {
            "kind": self.name,
            "timeout_s": setup.engine.request_timeout_s,
            "control_timeout_s": setup.weights.update_timeout_s,
            "has_spans": True,
            "incarnation": incarnation,
        }

    def serve_reward_model(
        self, model: str, engine: OwnEngineConfig, *, host: str, port: int
    ) -> None:
        """Serve a sequence classifier at /classify until a signal ends this process.

        Raises:
            ConfigError: it cannot be served.
        """
        raise ConfigError(
            f"--reward-model with --backend {engine.type}: start that server by its own command"
            f"{self.reward_model_command}; judges ask it at /classify"
        )

    def fork_imports(self, engine: OwnEngineConfig) -> tuple[str, ...]:
        """Return the modules that a server may be forked from; none if it may not be forked."""
        return ()

    def check_build(self, engine: OwnEngineConfig, *, interrupt: Interrupt, sleeps: bool) -> None:
        """Check the installation that the run starts servers from.

        Raises:
            ConfigError: it is not there, or cannot serve such a run; the message says what to
                install.
        """
        return None

    def probe(self, python: str) -> Probe | None:
        """Return whether the engine is installed in an interpreter (empty: the running one), for
        `arl doctor`; None: it needs no package of its own."""
        return None


Query = Callable[..., Awaitable[tuple[int, Any]]]
"""A function that requests a path (GET, or POST of JSON); it returns the status and the answer."""


class Checked(NamedTuple):
    """The properties of a server that passed the check."""

    kind: str
    has_spans: bool
    """Whether the server reports the policy version that sampled each token."""
    seed: int
    """The server's sampling seed."""


class ServerKind(OwnKind):
    """A kind of engine whose servers are another project's; they may be started before the run."""

    identity: ClassVar[str]
    """The route whose answer identifies a server of this kind."""
    releases: ClassVar[Releases]
    """The releases of the project that are driven here."""
    polls_staging: ClassVar[bool] = True
    dimensions: ClassVar[str] = "dt"

    @abstractmethod
    def is_own(self, status: int, answer: Any) -> bool:
        """Return whether `answer`, with this status, is that of such a server at `identity`."""

    @abstractmethod
    async def check(
        self, query: Query, url: str, setup: EngineSetup, identity: Any
    ) -> tuple[Checked, list[str]]:
        """Return the properties of the server at `url`, which answered `identity`, and the flags
        that it lacks for the setup of a run, a line each.

        Raises:
            ConfigError: its version is not supported, or it cannot be queried.
        """

    @abstractmethod
    def command(self, launch: Launch, build: Build) -> tuple[list[str], dict[str, str]]:
        """Return the argv of a server of an installed release, and the additions to its
        environment.

        Raises:
            ConfigError: it cannot serve such a run.
        """

    @abstractmethod
    def find_build(self, python: str) -> Build:
        """Return the checked release of an interpreter (empty: the running one).

        Raises:
            ConfigError: no such interpreter, none in it, or one that cannot be driven; the message
                says what to install.
        """

    def client_options(self, setup: EngineSetup, *, incarnation: int) -> ClientOptions:
        options = super().client_options(setup, incarnation=incarnation)
        if (python := setup.python_of_servers) is not None:
            options["has_spans"] = self.find_build(python).has_spans
        return options

    def check_build(self, engine: OwnEngineConfig, *, interrupt: Interrupt, sleeps: bool) -> None:
        assert isinstance(engine, ServerEngineConfig)
        build = self.find_build(engine.python)
        self.releases.check_interrupt(interrupt, has_spans=build.has_spans, where=build.python)

    def probe(self, python: str) -> Probe:
        return probe_build(self.releases.title, lambda: self.find_build(python))

    def checked(self, version: str, setup: EngineSetup, *, where: str, seed: int = 0) -> Checked:
        """Return the properties of a running server of that release.

        Raises:
            ConfigError: it is not supported, or cannot keep versions apart.
        """
        self.releases.check(version, where=where)
        has_spans = self.releases.has_spans(version)
        self.releases.check_interrupt(setup.interrupt, has_spans=has_spans, where=where)
        return Checked(self.name, has_spans, seed)

    def serve(self, launch: Launch) -> None:
        argv, env = self.command(launch, self.find_build(launch.engine.python))
        _become(argv, env)


def _become(argv: list[str], env: Mapping[str, str]) -> None:
    """Replace this process by another program, the server."""
    os.execvpe(argv[0], argv, {**os.environ, **env})


def own_kind(type: str) -> OwnKind:
    """Return the kind of engines of that type.

    Raises:
        ConfigError: there is none, or runs cannot use it.
    """
    return load_extension("engines", type, of=OwnKind)


def kind_of(engine: EngineConfig) -> OwnKind:
    """Return the kind of an engine; see `own_kind`."""
    return own_kind(engine.type)
