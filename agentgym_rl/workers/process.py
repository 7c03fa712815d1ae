"""The rollout worker, `arl rollout`: a process that plays groups leased by the controller.

    controller ─► lease ─► members, each by an agent at this process's own gateway ─► controller
               ─► engines in service, publications ─► the gateway's router

A worker keeps no state: its finished episodes are in the run's log, and those that it plays when it
dies are played again by other workers.
"""

from __future__ import annotations

import asyncio
import logging

from agentgym_rl.config import Config
from agentgym_rl.core.messages import Lease
from agentgym_rl.rollout.episode import Player
from agentgym_rl.rollout.player import serving_policy
from agentgym_rl.rollout.producer import play_member
from agentgym_rl.rollout.throughput import used_by

from .client import LeaseLost, LeasesClient, RunEnding
from .engines import FollowedFleet

log = logging.getLogger(__name__)


async def work(config: Config, *, controller_url: str, token: str, index: int = 0) -> None:
    """Play, as worker number `index`, until the controller reports that there is nothing more
    to play.

    Raises:
        CutOff: the controller has given this worker up.
        ControllerError: the controller is gone, or refuses a request.
        InfraError: no engine served for too long.
    """
    log.info("worker %d", index)
    # The configured port is that of the gateway of `arl train`.
    config = config.model_copy(update={"gateway": config.gateway.model_copy(update={"port": 0})})
    try:
        async with LeasesClient.connected(controller_url, token) as client:
            fleet = FollowedFleet(config, client)
            async with fleet.running(), serving_policy(config, fleet) as player:
                fleet.used = lambda: used_by(player.services)
                try:
                    await _Worker(config, client, player).run()
                finally:
                    await fleet.last_words()
    except* RunEnding:
        log.info("nothing more is to be played")


class _Worker:
    def __init__(self, config: Config, client: LeasesClient, player: Player) -> None:
        self._config = config
        self._client = client
        self._player = player

    async def run(self) -> None:
        """Play all leased groups, as many at once as the controller leases.

        Raises:
            RunEnding: the controller has nothing more to play.
        """
        await self._client.ready()
        async with asyncio.TaskGroup() as groups:
            while True:
                lease = await self._client.lease()
                if lease is not None:
                    groups.create_task(self._play(lease), name=f"group {lease.group_id}")

    async def _play(self, lease: Lease) -> None:
        try:
            async with asyncio.TaskGroup() as members:
                for name in lease.members:
                    members.create_task(self._play_member(lease, name), name=f"episode {name}")
        except* LeaseLost as lost:
            log.warning("group %s is given up: %s", lease.group_id, lost.exceptions[0])

    async def _play_member(self, lease: Lease, name: str) -> None:
        member = await play_member(
            self._config, self._player, lease.task, group_id=lease.group_id, episode_id=name
        )
        await self._client.finished(member)
