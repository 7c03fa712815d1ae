"""The transfer of policy versions from the trainer to the engines.

files.py         one version as a folder of checksummed parts: its index and its readers
parts.py         the writing of a version, by several processes, without unchanged parts
loading.py       a model folder loaded completely: whole, as an outline, or a rank's slices of it
source.py        a model's tensors under the folder's names
adapter.py       one version as an adapter, and the merge into its base weights
publish.py       one version for every engine with a short pause: stage, then swap
transport.py     the interface of a transport, the state of one publication, and the transport of
                 files in shared memory (storage/weights_folder.py)
engine_routes.py  the weight-update routes of one engine
receivers.py     the contract of a kind of engine that receives versions: routes and transports

Packages add transports (arl_gloo/transport.py), and kinds of engines may have routes and transports
of their own (arl_sglang/weight_routes.py, arl_vllm/native.py).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adapter import check_finite as check_finite
    from .adapter import is_adapter as is_adapter
    from .adapter import peft_tensors as peft_tensors
    from .adapter import read_base as read_base
    from .engine_routes import RESUME_TIMEOUT_S as RESUME_TIMEOUT_S
    from .engine_routes import EngineHttpError as EngineHttpError
    from .engine_routes import Pause as Pause
    from .engine_routes import RemoteEngine as RemoteEngine
    from .files import KnownKinds as KnownKinds
    from .files import LazyTensors as LazyTensors
    from .files import Prepared as Prepared
    from .files import StoredVersion as StoredVersion
    from .files import bytes_of as bytes_of
    from .files import fingerprint as fingerprint
    from .files import kinds_of as kinds_of
    from .files import opened_version as opened_version
    from .files import whole_units as whole_units
    from .loading import Loaded as Loaded
    from .loading import Rounded as Rounded
    from .loading import load_outline as load_outline
    from .loading import load_slices as load_slices
    from .loading import load_whole as load_whole
    from .loading import replace as replace
    from .loading import rows_of as rows_of
    from .parts import PART_BYTES as PART_BYTES
    from .parts import PartsWriter as PartsWriter
    from .parts import plan_parts as plan_parts
    from .publish import Publisher as Publisher
    from .receivers import ReceiverKind as ReceiverKind
    from .receivers import receiver_kind as receiver_kind
    from .receivers import recognized as recognized
    from .source import Piece as Piece
    from .source import SourceNames as SourceNames
    from .source import add_otherwise as add_otherwise
    from .source import factor as factor
    from .source import inner_linears as inner_linears
    from .source import is_linear as is_linear
    from .source import multiply_in as multiply_in
    from .source import set_own_attention as set_own_attention
    from .source import wide_linear as wide_linear
    from .source import wide_product as wide_product
    from .transport import Publication as Publication
    from .transport import SharedFiles as SharedFiles
    from .transport import Transport as Transport
    from .transport import own_address as own_address
    from .transport import rank_offsets as rank_offsets
    from .transport import stage_tensors as stage_tensors
    from .version_folder import copy_version as copy_version
    from .version_folder import new_folder as new_folder
    from .version_folder import save_tensors as save_tensors
    from .version_folder import stored_before as stored_before
    from .version_folder import write_index as write_index
    from .version_folder import write_version as write_version
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
