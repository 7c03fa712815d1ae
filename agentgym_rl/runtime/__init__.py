"""The services of every process: files, HTTP, time, signals, logs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .atomic_file import new_file as new_file
    from .atomic_file import replace_text as replace_text
    from .atomic_file import replacing as replacing
    from .frozen import Vital as Vital
    from .gc_pacing import paced_collections as paced_collections
    from .grammars import Constraint as Constraint
    from .grammars import GrammarCompiler as GrammarCompiler
    from .guard import holder_of as holder_of
    from .guard import place as place
    from .guard import queued_s as queued_s
    from .http_client import MAX_ANSWER_BYTES as MAX_ANSWER_BYTES
    from .http_client import AnswerTooLarge as AnswerTooLarge
    from .http_client import HttpClient as HttpClient
    from .http_client import bound_response as bound_response
    from .http_client import read_json as read_json
    from .http_server import MSGPACK as MSGPACK
    from .http_server import Api as Api
    from .http_server import App as App
    from .http_server import BodyTooLarge as BodyTooLarge
    from .http_server import Receive as Receive
    from .http_server import Scope as Scope
    from .http_server import Send as Send
    from .http_server import in_url as in_url
    from .http_server import is_secret as is_secret
    from .http_server import json_response as json_response
    from .http_server import read_body as read_body
    from .http_server import serving as serving
    from .imports import environment_secrets as environment_secrets
    from .imports import hidden_modules as hidden_modules
    from .imports import import_function as import_function
    from .imports import import_object as import_object
    from .imports import load_litellm as load_litellm
    from .imports import parse_python as parse_python
    from .imports import whose as whose
    from .log import OURS as OURS
    from .log import Repeated as Repeated
    from .lru_dict import LruDict as LruDict
    from .memory import give_back_large_pieces as give_back_large_pieces
    from .memory import give_back_memory as give_back_memory
    from .memory import lacks_memory as lacks_memory
    from .pausable_clock import ENGINE_CLOCK as ENGINE_CLOCK
    from .signals import run_interruptible as run_interruptible
    from .signals import stop_signal as stop_signal
    from .tasks import first_of as first_of
    from .tasks import in_thread as in_thread
    from .tasks import together as together
    from .waiting import Changes as Changes
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
