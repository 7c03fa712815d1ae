"""The files of a run: episodes, metrics, checkpoints, weights."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checkpoints import MANIFEST as MANIFEST
    from .checkpoints import Manifest as Manifest
    from .checkpoints import Retention as Retention
    from .checkpoints import best_checkpoint as best_checkpoint
    from .checkpoints import checksums as checksums
    from .checkpoints import newest_checkpoint as newest_checkpoint
    from .checkpoints import read_manifest as read_manifest
    from .episode_log import EpisodeLog as EpisodeLog
    from .episode_log import check_log as check_log
    from .episode_reader import EpisodeReader as EpisodeReader
    from .evaluations import EvalRecord as EvalRecord
    from .evaluations import EvalRecords as EvalRecords
    from .metrics import MetricsFile as MetricsFile
    from .overlap import COMPUTE_PHASES as COMPUTE_PHASES
    from .phases import PhasesFile as PhasesFile
    from .phases import StepPhases as StepPhases
    from .phases import read_phases as read_phases
    from .recovery import Recovered as Recovered
    from .run_end import RunEnd as RunEnd
    from .run_end import RunKind as RunKind
    from .run_end import end_of as end_of
    from .run_end import kind_of_folder as kind_of_folder
    from .run_end import recorded_end as recorded_end
    from .run_folder import EPISODES as EPISODES
    from .run_folder import EVALUATED as EVALUATED
    from .run_folder import EVALUATION_RESULT as EVALUATION_RESULT
    from .run_folder import RUN as RUN
    from .run_folder import WARMED_UP as WARMED_UP
    from .run_folder import config_of as config_of
    from .run_folder import file_name as file_name
    from .run_list import RunSummary as RunSummary
    from .run_list import evaluation_of as evaluation_of
    from .run_list import find_runs as find_runs
    from .weights_folder import BASE as BASE
    from .weights_folder import MATRIX_A as MATRIX_A
    from .weights_folder import MATRIX_B as MATRIX_B
    from .weights_folder import SHARED_MEMORY as SHARED_MEMORY
    from .weights_folder import WeightsFolder as WeightsFolder
    from .weights_folder import check_version as check_version
    from .weights_folder import read_index as read_index
    from .weights_folder import seal as seal
    from .weights_folder import version_name as version_name
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
