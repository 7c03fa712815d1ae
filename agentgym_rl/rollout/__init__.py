"""The play of tasks: from a task to episodes, groups and rewards."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .additions import Addition as Addition
    from .additions import AdditionKind as AdditionKind
    from .additions import addition_kinds as addition_kinds
    from .config_checks import check_machine as check_machine
    from .config_checks import check_parts as check_parts
    from .config_checks import check_policy as check_policy
    from .config_checks import check_port as check_port
    from .config_checks import check_prompts as check_prompts
    from .config_checks import tried as tried
    from .endpoints import EndpointKind as EndpointKind
    from .endpoints import endpoint_kind as endpoint_kind
    from .episode import EpisodeEnv as EpisodeEnv
    from .episode import Player as Player
    from .factory import env_spec as env_spec
    from .factory import make_player as make_player
    from .factory import policy_gateway as policy_gateway
    from .factory import serving_policy as serving_policy
    from .factory import specimen as specimen
    from .factory import turns_of as turns_of
    from .groups import FinishedGroups as FinishedGroups
    from .groups import GroupRewarder as GroupRewarder
    from .groups import OpenGroup as OpenGroup
    from .groups import OpenGroups as OpenGroups
    from .groups import accept_filter as accept_filter
    from .players import PlayerKind as PlayerKind
    from .players import check_single_agent as check_single_agent
    from .players import player_kind as player_kind
    from .producer import Cursor as Cursor
    from .producer import LocalProducer as LocalProducer
    from .producer import Producer as Producer
    from .producer import TaskCursor as TaskCursor
    from .producer import play_member as play_member
    from .recorder import Recorder as Recorder
    from .retries import play_with_retries as play_with_retries
    from .rollout import Rollout as Rollout
    from .task_choice import Draws as Draws
    from .task_choice import DrawsKind as DrawsKind
    from .task_choice import draws_of as draws_of
    from .throughput import Meter as Meter
    from .throughput import Pace as Pace
    from .throughput import SandboxPace as SandboxPace
    from .throughput import VerifierPace as VerifierPace
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
