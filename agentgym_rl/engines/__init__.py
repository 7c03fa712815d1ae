"""The engines: their kinds, their processes, their clients, and the choice among several."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .builds import Build as Build
    from .builds import Releases as Releases
    from .builds import ask_packages as ask_packages
    from .builds import dotted as dotted
    from .checks import check_server as check_server
    from .client.client import ClientOptions as ClientOptions
    from .client.client import EngineClient as EngineClient
    from .client.client import Measure as Measure
    from .client.client import TokenRequest as TokenRequest
    from .client.client import Total as Total
    from .client.deltas import NO_LOGPROB as NO_LOGPROB
    from .client.deltas import Words as Words
    from .client.deltas import read_counters as read_counters
    from .client.http_engine import HttpEngine as HttpEngine
    from .kind import EngineSetup as EngineSetup
    from .kind import Launch as Launch
    from .kind import OwnKind as OwnKind
    from .kind import ServerKind as ServerKind
    from .kind import kind_of as kind_of
    from .launch import engine_name as engine_name
    from .launch import engine_process as engine_process
    from .launch import server_environment as server_environment
    from .launch import server_seed as server_seed
    from .protocol import VersionSpan as VersionSpan
    from .router.engine_choice import Replica as Replica
    from .router.engine_choice import Replicas as Replicas
    from .router.router import Router as Router
    from .served_adapter import EMPTY_ADAPTER as EMPTY_ADAPTER
    from .served_adapter import FUSED as FUSED
    from .served_adapter import PEFT_TENSORS as PEFT_TENSORS
    from .served_adapter import empty_adapter as empty_adapter
    from .served_adapter import joined_with as joined_with
    from .served_adapter import write_peft_settings as write_peft_settings
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
