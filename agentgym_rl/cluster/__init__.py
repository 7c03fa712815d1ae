"""The processes of a run: `local` on this machine, `ray` on a cluster, `slurm` to start Ray."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .forking import Forks as Forks
    from .forking import ForkServer as ForkServer
    from .health import Silence as Silence
    from .health import health_of as health_of
    from .local import LocalProcesses as LocalProcesses
    from .ports import free_port as free_port
    from .processes import Cluster as Cluster
    from .processes import Job as Job
    from .processes import Places as Places
    from .processes import Processes as Processes
    from .processes import Submitted as Submitted
    from .processes import cluster_kind as cluster_kind
    from .processes import cluster_of as cluster_of
    from .resources import Demand as Demand
    from .restarts import Supervisor as Supervisor
    from .spec import ProcessSpec as ProcessSpec
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
