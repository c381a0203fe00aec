"""Splits what a chat model writes into reasoning, answer and tool calls, while it is being written.

>>> from rocmforge.parsing import OutputParser, find_format
>>> parser = OutputParser(find_format("… <think> … </think> …"))
>>> parser.feed("<think>Two and two") + parser.feed(" are four.</think>4") + parser.finish()
[Reasoning(text='Two and two'), Reasoning(text=' are four.'), Content(text='4')]
"""

from rocmforge.parsing.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from rocmforge.parsing.formats import ChatFormat, Thinking, find_format
from rocmforge.parsing.grammars import CallGrammar, call_grammar, harmony_answer
from rocmforge.parsing.lark import UnsupportedCallsError
from rocmforge.parsing.message import Message, ToolCall, gather
from rocmforge.parsing.parser import OutputParser, parse

__all__ = [
    "CallGrammar",
    "ChatFormat",
    "Content",
    "Event",
    "Message",
    "OutputParser",
    "Reasoning",
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
]
