"""`arl rollout`: a process that plays the groups which the controller leases to it.

    controller ─► lease ─► members, each by an agent at this process's own gateway ─► controller
               ─► engines in service, publications ─► the gateway's router

It keeps nothing: what it has played is in the run's log, and what it plays when it dies is played
again by others.
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

from .client import HubClient, LeaseLost, RunEnding
from .engines import FollowedFleet

log = logging.getLogger(__name__)


async def work(config: Config, *, controller_url: str, token: str, index: int = 0) -> None:
    """Play, as worker number `index`, until the controller says that there is nothing more
    to play.

    Raises:
        CutOff: the controller has given this worker up.
        HubError: it is gone, or refuses what is sent.
        InfraError: no engine served for too long.
    """
    log.info("worker %d", index)
    # The configured port is that of the gateway of `arl train`.
    config = config.model_copy(update={"gateway": config.gateway.model_copy(update={"port": 0})})
    try:
        async with HubClient.connected(controller_url, token) as hub:
            fleet = FollowedFleet(config, hub)
            async with fleet.running(), serving_policy(config, fleet) as player:
                fleet.used = lambda: used_by(player.services)
                try:
                    await _Worker(config, hub, player).run()
                finally:
                    await fleet.last_words()
    except* RunEnding:
        log.info("nothing more is to be played")


class _Worker:
    def __init__(self, config: Config, hub: HubClient, player: Player) -> None:
        self._config = config
        self._hub = hub
        self._player = player

    async def run(self) -> None:
        """Play what is leased, as many groups at once as the controller gives out.

        Raises:
            RunEnding: in the end.
        """
        await self._hub.ready()
        async with asyncio.TaskGroup() as groups:
            while True:
                lease = await self._hub.lease()
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
        await self._hub.finished(member)
