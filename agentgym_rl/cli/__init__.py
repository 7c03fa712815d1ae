"""The command line: what commands are made of, and how they are found."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .command import Command as Command
    from .command import agent_flag as agent_flag
    from .command import begin_process_of_run as begin_process_of_run
    from .command import config_flag as config_flag
    from .command import config_flags as config_flags
    from .command import controller_token as controller_token
    from .command import data_flag as data_flag
    from .command import engine_flag as engine_flag
    from .command import env_flag as env_flag
    from .command import first_model_flag as first_model_flag
    from .command import json_flag as json_flag
    from .command import key_flag as key_flag
    from .command import load_configuration as load_configuration
    from .command import loudness_flags as loudness_flags
    from .command import overrides_of as overrides_of
    from .command import play_flags as play_flags
    from .command import run_argument as run_argument
    from .command import sandbox_flag as sandbox_flag
    from .command import seed_flag as seed_flag
    from .command import steps_flag as steps_flag
    from .command import take_keys as take_keys
    from .config_keys import allowed_values as allowed_values
    from .output import print_json as print_json
    from .output import print_result as print_result
    from .training import run_training as run_training
    from .training import training_flags as training_flags
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
