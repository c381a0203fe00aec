"""Splits the output of a chat model into reasoning, answer and tool calls, also while it is streamed.

>>> from rocmforge.parsing import OutputParser, find_format
>>> parser = OutputParser(find_format("… <think> … </think> …"))
>>> parser.feed("<think>Two and two") + parser.feed(" are four.</think>4") + parser.finish()
[Reasoning(text='Two and two'), Reasoning(text=' are four.'), Content(text='4')]
"""

from rocmforge.parsing.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from rocmforge.parsing.formats import ChatFormat, Thinking, find_format
from rocmforge.parsing.grammars import CallGrammar, call_grammar, harmony_answer
from rocmforge.parsing.grammars.lark import UnsupportedCallsError
from rocmforge.parsing.message import Message, ToolCall, gather
from rocmforge.parsing.needs import Render, renderer
from rocmforge.parsing.parser import OutputParser, parse
from rocmforge.parsing.replies import Markers, ReplyFormat

__all__ = [
    "CallGrammar",
    "ChatFormat",
    "Content",
    "Event",
    "Markers",
    "Message",
    "OutputParser",
    "Reasoning",
    "Render",
    "ReplyFormat",
    "Thinking",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallStart",
    "UnsupportedCallsError",
    "call_grammar",
    "find_format",
    "gather",
    "harmony_answer",
    "parse",
    "renderer",
]
