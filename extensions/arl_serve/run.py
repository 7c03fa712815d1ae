"""The command `arl serve`: a run whose episodes other programs play, against this run's gateway.

engines and trainer start ─► serve.json ─► sessions, rewards ║ training ─► checkpoint, export
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import secrets
from pathlib import Path

from agentgym_rl.cluster import ForkServer
from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError, parse_json
from agentgym_rl.models import model_folder, resolve_paths
from agentgym_rl.report import Progress
from agentgym_rl.rollout import check_policy, check_port, policy_gateway
from agentgym_rl.rollout.throughput import measuring
from agentgym_rl.run import Played, TrainingRun, TrainResult
from agentgym_rl.run.opening import training
from agentgym_rl.storage.run_folder import SERVE_INFO, shown

from .app import PREFIX, AdminApp
from .keys import ServeConfig
from .session_groups import SessionGroups


async def serve(
    config: Config,
    progress: Progress,
    *,
    resume: Path | None = None,
    server: ForkServer | None = None,
) -> TrainResult:
    """Train on the episodes of other programs, or resume the run in the folder `resume`; return
    after `config.steps` batches."""
    config = resolve_paths(config)
    if config.eval.scheduled:
        raise ConfigError(
            "eval.every and eval.every_minutes: `arl serve` plays no episodes, so it evaluates "
            "none; write checkpoints (trainer.checkpoint_every) and use arl eval --checkpoint"
        )
    for problem in config.rollout.refused_for_clients():
        raise ConfigError(problem)
    admin_key(config.of(ServeConfig), host=config.gateway.host)
    check_policy(config, config.own_engine).say_tools()
    check_port(config.gateway)
    async with training(_ServedRun, config, progress, resume=resume, server=server) as run:
        return await run.run()


def admin_key(config: ServeConfig, *, host: str, before: Path | None = None) -> str:
    """Return the key that opens sessions; if none is set, the one that the run wrote to the file
    `before`, or a new one.

    Raises:
        ConfigError: the gateway can be reached from other machines, and no key is set.
    """
    name = config.admin_key_env
    key = os.environ.get(name, "").strip()
    if key:
        return key
    if not _is_loopback(host):
        raise ConfigError(
            f"gateway.host {host!r} can be reached from other machines, and the "
            f"environment variable {name} (serve.admin_key_env) is not set: set it to a secret, "
            "whoever knows it can open sessions; or serve on 127.0.0.1"
        )
    return _key_in(before) or f"admin-arl-{secrets.token_hex(16)}"


def _key_in(file: Path | None) -> str:
    """Return the key in a resumed run's serve.json, so programs keep theirs; "" without one."""
    try:
        return str(parse_json(file.read_text(encoding="utf-8"))["admin_key"]) if file else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _ServedRun(TrainingRun):
    folder = "serve"
    command = "serve"
    evaluates = False

    @property
    def title(self) -> str:
        return "episodes of other programs"

    async def play(self) -> Played:
        key = admin_key(
            self.config.of(ServeConfig),
            host=self.config.gateway.host,
            before=self.run_dir / SERVE_INFO,
        )
        model_dir = model_folder(self.config.model, self.config.env.id)
        longest = self.config.own_engine.max_model_len
        async with (
            self.groups() as groups,
            policy_gateway(
                self.fleet, model_dir, self.config.gateway, max_model_len=longest
            ) as gateway,
        ):
            session_groups = SessionGroups(
                self.config.of(ServeConfig),
                self.config.rollout,
                gateway,
                groups,
                seed=self.config.seed,
                steps=self.config.steps,
            )
            app = AdminApp(gateway.app, session_groups, admin_key=key)
            gateway.app = app
            await self.wait_trainer()
            async with (
                gateway.serve() as base_url,
                measuring() as meter,
                asyncio.TaskGroup() as own,
            ):
                app.base_url = base_url
                self._tell(base_url, key)
                watching = own.create_task(session_groups.run(), name="session groups")
                adapting = own.create_task(self.adapt(), name="concurrency")
                await self.wait_trained()
                adapting.cancel()
                watching.cancel()
                pace = meter.read(episodes=sum(groups.finished.outcomes.values()))
        return Played(groups.finished, pace)

    def _tell(self, base_url: str, key: str) -> None:
        admin_url = base_url.removesuffix("/v1") + PREFIX.rstrip("/")
        told = {"base_url": base_url, "admin_url": admin_url, "admin_key": key}
        file = self.run_dir / SERVE_INFO
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(json.dumps(told, indent=2) + "\n")
        self.progress.phase(f"serving on {base_url}; sessions: {admin_url}, key in {shown(file)}")
