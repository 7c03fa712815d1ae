"""The files of a model, and the defaults that depend on it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .defaults import kv_bytes_per_token as kv_bytes_per_token
    from .defaults import with_model_defaults as with_model_defaults
    from .resolve import BUNDLED_MODELS as BUNDLED_MODELS
    from .resolve import CANARIES as CANARIES
    from .resolve import check_tokenizer as check_tokenizer
    from .resolve import local_folder as local_folder
    from .resolve import model_digests as model_digests
    from .resolve import model_folder as model_folder
    from .resolve import model_name as model_name
    from .resolve import model_of_run as model_of_run
    from .resolve import other_folders as other_folders
    from .resolve import resolve_model as resolve_model
    from .resolve import resolve_paths as resolve_paths
    from .resolve import tokenizer_hash as tokenizer_hash
    from .resolve import weights_size as weights_size
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
