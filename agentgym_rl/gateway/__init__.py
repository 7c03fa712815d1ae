"""The endpoint that agents call: an OpenAI API that records every token."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import AgentClients as AgentClients
    from .dialects import Dialect as Dialect
    from .dialects import Question as Question
    from .dialects import Reply as Reply
    from .dialects import Route as Route
    from .dialects import Writer as Writer
    from .dialects import typed_event as typed_event
    from .dialects.formats import WireFormat as WireFormat
    from .errors import ApiError as ApiError
    from .errors import bad_request as bad_request
    from .errors import unsupported as unsupported
    from .messages import thoughts_of as thoughts_of
    from .messages import without_billing as without_billing
    from .messages import without_thoughts as without_thoughts
    from .parsers.families import readers_of as readers_of
    from .parsers.formats import CallGrammar as CallGrammar
    from .parsers.formats import Calls as Calls
    from .parsers.formats import Format as Format
    from .parsers.formats import GrammarText as GrammarText
    from .parsers.formats import block_format as block_format
    from .parsers.formats import call_formats as call_formats
    from .parsers.grammars import Grammars as Grammars
    from .parsers.grammars import ModelFormat as ModelFormat
    from .parsers.grammars import not_forced as not_forced
    from .parsers.json_calls import is_object as is_object
    from .parsers.json_calls import malformed as malformed
    from .parsers.json_calls import object_grammar as object_grammar
    from .parsers.json_calls import own_id as own_id
    from .parsers.json_calls import parse_object as parse_object
    from .parsers.parser import Event as Event
    from .parsers.parser import Frame as Frame
    from .parsers.parser import Parser as Parser
    from .parsers.parser import ParserFactory as ParserFactory
    from .parsers.parser import Read as Read
    from .parsers.parser import Reasoning as Reasoning
    from .parsers.parser import ToolCall as ToolCall
    from .parsers.parser import Tools as Tools
    from .parsers.parser import any_start as any_start
    from .parsers.parser import either as either
    from .parsers.parser import tag_start as tag_start
    from .parsers.think import Thoughts as Thoughts
    from .request.body import given_fields as given_fields
    from .request.body import json_object as json_object
    from .request.body import refuse_unknown as refuse_unknown
    from .request.chat_request import ChatRequest as ChatRequest
    from .request.chat_request import checked_messages as checked_messages
    from .request.client_sampling import left_to_session as left_to_session
    from .request.offered_tools import Offer as Offer
    from .request.unreadable import PartReader as PartReader
    from .request.unreadable import Unreadable as Unreadable
    from .server.gateway import Gateway as Gateway
    from .server.session_server import SessionServer as SessionServer
    from .session.nodes import Context as Context
    from .session.nodes import Sampled as Sampled
    from .session.sampling import SessionSampling as SessionSampling
    from .session.session import Session as Session
    from .session.session import SessionRecord as SessionRecord
    from .session.turn_check import Fed as Fed
    from .session.turn_check import TurnCheck as TurnCheck
    from .template.chat_format import ChatFormat as ChatFormat
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
