"""Adapts the conversations that agents send to the chat template of the model."""

import hashlib
import json
import string
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Annotated, Any

from pydantic import BeforeValidator

from rocmforge.parsing.needs import TemplateNeeds
from rocmforge.parsing.readers.json_text import MAX_DEPTH
from rocmforge.parsing.shapes import CallShape
from rocmforge.prompts import Message

TemplateMessage = dict[str, Any]

_SHORT = string.digits + string.ascii_letters


def in_turns(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Merges consecutive messages of the role `system`, and of the role `user`.

    Many templates refuse a system message after other messages, and some drop it. It becomes part of the user's turn.
    """
    made: list[TemplateMessage] = []
    begins = True
    # The parts of the last message, once it consists of several.
    parts: list[dict[str, Any]] | None = None
    for message in messages:
        if message["role"] == "system" and not begins:
            message = {"role": "user", "content": message["content"]}  # noqa: PLW2901 - the same message
        begins = begins and message["role"] == "system"
        if made and message["role"] in ("system", "user") and made[-1]["role"] == message["role"]:
            if parts is None:
                parts = list(parts_of(made[-1]["content"]))
                made[-1] = {**made[-1], "content": parts}
            parts += parts_of(message["content"])
        else:
            parts = None
            made.append(message)
    return made


def with_reasoning(messages: Sequence[Message], template: str) -> Sequence[Message]:
    """Returns messages with reasoning under the template's name: `reasoning_content`, `thinking` or `reasoning`.

    The template of gpt-oss refuses a message with reasoning, an answer and calls. There, the answer stays.
    """
    names = () if "reasoning_content" in template else ("thinking", "reasoning")
    key = next((name for name in names if f"message.{name}" in template), None)
    if key is None:
        return messages
    return [
        {**message, key: message["reasoning_content"]}
        if message.get("reasoning_content") and not (message.get("content") and message.get("tool_calls"))
        else message
        for message in messages
    ]


def call_arguments(text: str) -> dict[str, Any]:
    """Returns the arguments of a call as an object.

    The model's output may have been cut off, or invalid JSON. Its client sends that back in each later turn; the model
    sees it under `invalid_arguments`.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return held_arguments(value if isinstance(value, dict) else {"invalid_arguments": text})


def held_arguments(value: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call as valid JSON values; arguments that are nested too deeply are left out.

    As in `rocmforge.parsing`, U+FFFD replaces unpaired surrogates, infinite numbers become the nearest finite one, and
    `NaN` becomes `null`.
    """
    try:
        return {str(_held(key, 0)): _held(each, MAX_DEPTH - 1) for key, each in value.items()}
    except ValueError:
        return {"invalid_arguments": f"nested more than {MAX_DEPTH} levels deep"}


def _held_object(value: Any) -> Any:
    return held_arguments(value) if isinstance(value, dict) else value


CallArguments = Annotated[dict[str, Any], BeforeValidator(_held_object)]
"""Call arguments that a client sends back as an object. Values that JSON cannot represent are repaired."""


def parts_of(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a content as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def is_blank(content: str | list[dict[str, Any]] | None) -> bool:
    """True if a content has neither text nor images."""
    return not content or (isinstance(content, list) and all(part.get("text") == "" for part in content))


def fitted(
    messages: Sequence[Mapping[str, Any]], needs: TemplateNeeds, shape: CallShape | None = None
) -> list[TemplateMessage]:
    """Returns the messages of a conversation with tools as the chat template needs them.

    Ids have the template's format, and results name their calls. If the template accepts only one call for each
    message, a message with several calls becomes several messages, each followed by its result. If it leaves out calls
    next to a text, they get a separate message. Calls that it never writes become part of the text, and results that
    it never writes become questions.

    Args:
        messages: The conversation.
        needs: The needs of the template.
        shape: The shape of the model's calls, if it has one.
    """
    made: list[TemplateMessage] = []
    given_calls = _GivenCalls()
    count = 0
    for given in messages:
        message = dict(given)
        if message["role"] == "tool":
            id_ = given_calls.answered(message.get("tool_call_id"), message.get("name"))
            if id_ is not None:
                message["tool_call_id"] = id_
            elif needs.ids == "short" and message.get("tool_call_id") is not None:
                message["tool_call_id"] = short_id(message["tool_call_id"])
            if not needs.writes_results:
                message = {"role": "user", "content": message["content"]}
        elif calls := message.get("tool_calls"):
            message["tool_calls"] = []
            if needs.calls_apart and not is_blank(message.get("content")):
                made.append({key: value for key, value in message.items() if key != "tool_calls"})
                message = {"role": "assistant", "content": "", "tool_calls": []}
            if needs.null_content and is_blank(message.get("content")):
                message["content"] = None
            given_calls.begin_message()
            for call in calls:
                fitting = _fitting_call(call, needs, count)
                message["tool_calls"].append(fitting)
                given_calls.add(call.get("id"), call["function"]["name"], fitting["id"])
                count += 1
            if not needs.writes_calls:
                _write_calls(message, shape)
        made.append(message)
    return list(_one_call_each(made, needs)) if needs.single_calls else made


@dataclass(slots=True)
class _GivenCall:
    template_id: str
    message: int
    is_answered: bool = False


class _GivenCalls:
    """The calls of a conversation, for the results that follow them."""

    def __init__(self) -> None:
        self._by_id: dict[str, deque[_GivenCall]] = {}
        # The calls of the last message that has any.
        self._by_name: dict[str, deque[_GivenCall]] = {}
        self._all: deque[_GivenCall] = deque()
        self._message = 0

    def begin_message(self) -> None:
        """Begins a message with calls. Results without an id are those of its calls."""
        self._message += 1
        self._by_name, self._all = {}, deque()

    def add(self, given_id: str | None, name: str, template_id: str) -> None:
        """Adds a call of the message, with the ids that the client and the template have for it."""
        call = _GivenCall(template_id, self._message)
        if given_id is not None:
            calls = self._by_id.setdefault(given_id, deque())
            if calls and calls[0].message != self._message:
                # Some clients count the calls of each message from 0.
                calls.clear()
            calls.append(call)
        self._by_name.setdefault(name, deque()).append(call)
        self._all.append(call)

    def answered(self, given_id: str | None, name: str | None) -> str | None:
        """Returns the template's id of the call that a result answers; `None` if there is no such call.

        It is the call with the result's id. Without an id, it is the first open one with its function name, else the
        first open one.
        """
        if given_id is not None:
            calls = self._by_id.get(given_id)
        else:
            calls = self._all if name is None else self._by_name.get(name)
        if not calls:
            return None
        while calls[0].is_answered and len(calls) > 1:
            calls.popleft()
        if calls[0].is_answered and given_id is None:
            return None
        calls[0].is_answered = True
        return calls[0].template_id


def _write_calls(message: TemplateMessage, shape: CallShape | None) -> None:
    """Makes the calls of a message a part of its content: as the model writes them, or one JSON object a line."""
    functions = [call["function"] for call in message.pop("tool_calls")]
    given = ((function["name"], function["arguments"]) for function in functions)
    calls = [(name, call_arguments(each) if isinstance(each, str) else each) for name, each in given]
    if shape is None:
        texts = [json.dumps({"name": name, "arguments": each}, ensure_ascii=False) for name, each in calls]
        written = "\n".join(texts)
    else:
        written = shape.written(calls)
    content = message.get("content") or ""
    if isinstance(content, list):
        message["content"] = [*content, {"type": "text", "text": written}]
    else:
        message["content"] = f"{content}\n{written}" if content and shape is None else content + written


def _fitting_call(call: Mapping[str, Any], needs: TemplateNeeds, number: int) -> dict[str, Any]:
    """Returns a call as a template needs it; `number` is its index among all calls of the conversation."""
    function = dict(call["function"])
    if needs.text_arguments and not isinstance(function["arguments"], str):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    given = call.get("id") or f"call_{number}"
    if needs.ids == "named":
        given = f"functions.{function['name']}:{number}"
    elif needs.ids == "short":
        given = short_id(given)
    return {**call, "id": given, "function": function}


def _one_call_each(messages: Sequence[TemplateMessage], needs: TemplateNeeds) -> Iterator[TemplateMessage]:
    """Yields messages with one call each, every message followed by the results of its call."""
    place = 0
    while place < len(messages):
        message, calls = messages[place], messages[place].get("tool_calls") or []
        place += 1
        if len(calls) < 2:
            yield message
            continue
        results: dict[str | None, list[TemplateMessage]] = {}
        while place < len(messages) and messages[place]["role"] == "tool":
            results.setdefault(messages[place].get("tool_call_id"), []).append(messages[place])
            place += 1
        for number, call in enumerate(calls):
            turn = message if number == 0 else {"role": "assistant", "content": None if needs.null_content else ""}
            yield {**turn, "tool_calls": [call]}
            yield from results.pop(call["id"], ())
        for others in results.values():
            yield from others


def short_id(given: str) -> str:
    """Returns an id of 9 letters and digits: the given id if it has this format, otherwise a hash of it."""
    if len(given) == 9 and given.isascii() and given.isalnum():
        return given
    number = int.from_bytes(hashlib.blake2b(given.encode("utf-8", "replace"), digest_size=8).digest(), "big")
    return "".join(_SHORT[number // len(_SHORT) ** place % len(_SHORT)] for place in range(9))


def _held(value: Any, room: int) -> Any:
    """Returns a value that JSON and UTF-8 can represent.

    Raises:
        ValueError: More than `room` objects and lists are nested.
    """
    if isinstance(value, str):
        # Paired surrogates become one character, unpaired ones U+FFFD.
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else sys.float_info.max if value > 0 else -sys.float_info.max
    if not isinstance(value, dict | list):
        return value
    if room == 0:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_held(each, room - 1) for each in value]
    return {_held(key, room): _held(each, room - 1) for key, each in value.items()}
