"""Derives the shape of a model's tool calls from small conversations that its chat template renders.

A model was trained on the output of its template. The probes use names and values that occur nowhere else. So the
rendered text shows where names, keys and values go, and which texts surround them.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rocmforge.parsing.message import gather
from rocmforge.parsing.needs import USER, Render, TemplateNeeds, calling, probe_call, probe_tool, tried
from rocmforge.parsing.output import Output
from rocmforge.parsing.readers.shaped_calls import ShapedReader
from rocmforge.parsing.schema import Tools
from rocmforge.parsing.shapes import CDATA, FIRST_NUMBER, CallShape, pieces, shared
from rocmforge.parsing.source import Source

_NAMES = ("probe_name_a", "probe_name_b")
_ANSWER = "Zq"
_REASONING = "probe_reason"
_TAG = re.compile(r"<[^<>\s]+>")
_TAG_AT_END = re.compile(r"<[^<>/\s]+>(?=\s*\Z)")
_SECOND_NUMBER = '"1"'
# A text that XML does not hold as it is.
_MARKED_UP = "value0\n<b>"
# Each has one argument more than the last; the values are a string and a number.
_ARGUMENTS: Sequence[dict[str, Any]] = ({}, {"key0": "value0"}, {"key0": "value0", "key1": 4711})
_NUMBER: dict[str, Any] = {"key1": 4711}


_Span = Callable[[str, str], tuple[int, int] | None]
"""Finds where the call of a name begins and ends in a message."""


def derive_shape(render: Render, needs: TemplateNeeds, thinking: Sequence[str] = ()) -> CallShape | None:
    """Returns the shape of the calls that a template writes; `None` if it writes none, or in no known shape.

    Args:
        render: Renders conversations with the template.
        needs: The needs of the template.
        thinking: The markers of reasoning, which may precede calls.
    """
    probes = _Probes(render, needs, thinking)
    found = probes.body([_ARGUMENTS[1]])
    if found is None:
        return None
    shape = _json(probes, found) or _named(probes, found) or _python(probes, found) or _tagged(probes, found)
    # A text that changes with each call is not a marker.
    texts = () if shape is None else (shape.open, shape.before, shape.middle, shape.after, shape.between, shape.close)
    if shape is None or any(probe in text for text in texts for probe in (*probes.ids, *_NAMES)):
        return None
    return shape if probes.reads_back(shape) else None


def begins_calls(render: Render, needs: TemplateNeeds, marker: str, thinking: Sequence[str] = ()) -> bool:
    """True if the calls that a template writes begin with a marker, or if it writes none.

    Args:
        render: Renders conversations with the template.
        needs: The needs of the template.
        marker: The marker.
        thinking: The markers of reasoning, which may precede calls.
    """
    found = _Probes(render, needs, thinking).body([_ARGUMENTS[1]])
    return found is None or found.startswith(marker)


def derive_reasoning(render: Render) -> tuple[str, str] | None:
    """Returns the tags around reasoning, such as `<think>` and `</think>`; `None` if the template writes none."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        text = tried(render, [USER, {"role": "assistant", "content": _ANSWER, key: _REASONING}], []) or ""
        before, found, after = text.partition(_REASONING)
        opened, closed = _TAG_AT_END.search(before), _TAG.match(after.lstrip())
        if found and opened is not None and closed is not None and closed[0] == f"</{opened[0][1:]}":
            return opened[0], closed[0]
    return None


def derive_answer(render: Render, thinking: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the markers around an answer, such as `<answer>` and `</answer>`; empty for most templates."""
    plain = tried(render, [USER, {"role": "assistant", "content": _ANSWER}], [])
    try:
        prompt = render([USER], [], True)
    except ValueError:
        return ()
    if plain is None or _ANSWER not in plain:
        return ()
    start, _ = _difference(plain, prompt)
    before, _, after = plain[start:].partition(_ANSWER)
    for mark in thinking:
        before = before.rpartition(mark)[2]
    opened, closed = before.strip(), (pieces(after) or [""])[0]
    if pieces(opened) != [opened] or opened.strip("<|>").replace("START", "END") != closed.strip("</|>"):
        return ()
    return opened, closed


class _Probes:
    """Renders messages with calls, and extracts the text of the calls."""

    def __init__(self, render: Render, needs: TemplateNeeds, thinking: Sequence[str]) -> None:
        self._render = render
        self._needs = needs
        self._thinking = thinking
        self._tools = [probe_tool(name) for name in _NAMES]
        named = [f"functions.{name}:{n}" for n, name in enumerate(_NAMES)]
        self.ids = {"short": ["abcDEF780", "abcDEF781"], "named": named}.get(
            needs.ids, ["call_0123456789abcdefABCDEFG0", "call_0123456789abcdefABCDEFG1"]
        )
        self._begun = _begun_turn(render, self._tools)
        self.anchors: Sequence[str] = _NAMES
        # Some templates write the name as an id, whatever id a call has.
        if named[0] in (self.body([_ARGUMENTS[1]]) or ""):
            self.anchors = named

    def body(self, arguments: Sequence[Mapping[str, Any]]) -> str | None:
        """Returns the text of calls with these arguments; `None` if the template does not write them."""
        plain = tried(self._render, [USER, {"role": "assistant", "content": _ANSWER}], self._tools)
        calls = [
            probe_call(_NAMES[n], json.dumps(each) if self._needs.text_arguments else each, self.ids[n])
            for n, each in enumerate(arguments)
        ]
        content = None if self._needs.null_content else ""
        whole = tried(self._render, [USER, calling(*calls, content=content)], self._tools)
        if whole is None or plain is None:
            return None
        start, end = _difference(whole, plain)
        text = whole[start:end]
        for mark in self._thinking[-1:]:
            text = text.rpartition(mark)[2] if mark in text[: text.find(self.anchors[0])] else text
        text = text.strip().removeprefix(self._begun).lstrip()
        return text if all(anchor in text for anchor in self.anchors[: len(calls)]) else None

    def reads_back(self, shape: CallShape) -> bool:
        """True if messages with calls are read as these calls by the shape, and nothing is left over."""
        most = 1 if self._needs.single_calls else 2
        return all(self._reads_back(shape, [arguments] * most) for arguments in _ARGUMENTS)

    def _reads_back(self, shape: CallShape, arguments: Sequence[Mapping[str, Any]]) -> bool:
        text = self.body(arguments)
        if text is None or not text.startswith(shape.marker):
            return False
        source, output = Source(), Output(str)
        reader = ShapedReader(source, output, Tools(self._tools), shape)
        source.feed(text)
        source.ended = True
        # The text has ended, so no step waits for more.
        for _ in reader.attempt(shape.marker, known_only=True):
            raise AssertionError("a text that has ended is not waited for")
        calls = gather(output.take()).tool_calls
        # Some templates write numbers in quotation marks, which their models do not.
        read = [(call.name, _texts(call.arguments)) for call in calls]
        written = [(name, _texts(json.dumps(each))) for name, each in zip(_NAMES, arguments, strict=False)]
        return read == written and not source.text[source.at :].strip()

    def around(self, start: int, end: int, text: str, span: _Span) -> dict[str, Any] | None:
        """Returns the texts around calls, by comparing a message with one call and one with two.

        Args:
            start: Where the call begins in `text`.
            end: Where it ends.
            text: The message with one call.
            span: Finds the beginning and the end of an anchor's call in a message.
        """
        first, last = text[:start], text[end:]
        two = None if self._needs.single_calls else self.body([_ARGUMENTS[1], _ARGUMENTS[1]])
        if two is None:
            return {"open": first, "close": last}
        one, other = span(two, self.anchors[0]), span(two, self.anchors[1])
        if one is None or other is None or other[0] < one[1]:
            return None
        joint, rest = two[one[1] : other[0]], two[other[1] :]
        # Some templates close the calls of a message only where there are several.
        last = rest if rest.startswith(last) else last
        before = _whole_marks(shared(first[::-1], joint[::-1])[::-1])
        joint = joint[: len(joint) - len(before)]
        after = _closed(shared(last, joint))
        return {
            "open": first[: len(first) - len(before)],
            "before": before,
            "after": after,
            "between": joint[len(after) :],
            "close": last[len(after) :],
        }


def _texts(arguments: str) -> dict[str, str] | None:
    """Returns the values of a call's arguments as texts; `None` for arguments that are not whole."""
    try:
        return {key: str(value) for key, value in json.loads(arguments).items()}
    except ValueError:
        return None


def _begun_turn(render: Render, tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text by which a prompt begins the assistant's turn."""
    try:
        return render([USER], tools, True).removeprefix(render([USER], tools, False)).strip()
    except ValueError:
        return ""


def _closed(text: str) -> str:
    """Returns a text without an incomplete marker at its end."""
    return text[: text.rfind("<")] if text.rfind("<") > text.rfind(">") else text


def _whole_marks(text: str) -> str:
    """Returns a text without an incomplete marker at its beginning."""
    end = text.find(">")
    return text[end + 1 :] if end >= 0 and not 0 <= text.find("<") < end else text


def _difference(whole: str, plain: str) -> tuple[int, int]:
    """Returns the range in which a text differs from another one; it cuts no marker."""
    start = len(shared(whole, plain))
    if (cut := max(whole.rfind("<", 0, start), whole.rfind("[", 0, start))) > max(
        whole.rfind(">", 0, start), whole.rfind("]", 0, start)
    ):
        start = cut
    end = len(whole) - len(shared(whole[start:][::-1], plain[::-1]))
    if whole.rfind("<", start, end) > whole.rfind(">", start, end):
        end = whole.find(">", end) + 1 or end
    return start, end


def _objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yields the JSON objects in a text from the left, nested ones included."""
    decoder = json.JSONDecoder()
    for start, character in enumerate(text):
        if character == "{":
            try:
                value, end = decoder.raw_decode(text, start)
            except ValueError:
                continue
            yield start, end, value


def _json(probes: _Probes, text: str) -> CallShape | None:
    """Returns a shape in which one object contains name and arguments."""

    def span(message: str, anchor: str) -> tuple[int, int] | None:
        found = (each for each in _objects(message) if anchor in each[2].values() and _ARGUMENTS[1] in each[2].values())
        return next(((start, end) for start, end, _ in found), None)

    if (found := span(text, probes.anchors[0])) is None or (around := probes.around(*found, text, span)) is None:
        return None
    whole = text[slice(*found)]
    value = json.loads(whole)
    keys = {json.dumps(value[key]): key for key in value}
    arguments = next((part for part in _objects(whole) if part[2] == _ARGUMENTS[1]), None)
    name = whole.find(f'"{probes.anchors[0]}"')
    if arguments is None:
        return None
    name_key, arguments_key = keys[json.dumps(probes.anchors[0])], keys[json.dumps(_ARGUMENTS[1])]
    head, middle = whole[:name], whole[name + len(probes.anchors[0]) + 2 : arguments[0]]
    tail = whole[arguments[1] :]
    if name > arguments[0] or probes.ids[0] in whole:
        # Only the keys are used: a grammar has to write the name first, and cannot make an id.
        head, middle, tail = f'{{"{name_key}": ', f', "{arguments_key}": ', "}"
    other = head.replace(FIRST_NUMBER, _SECOND_NUMBER, 1) + f'"{probes.anchors[1]}"'
    return CallShape(
        "json", **around, name_key=name_key, arguments_key=arguments_key, head=head, middle=middle, tail=tail,
        is_counted=FIRST_NUMBER in head and other in (probes.body([_ARGUMENTS[1]] * 2) or ""),
    )  # fmt: skip


def _named(probes: _Probes, text: str) -> CallShape | None:
    """Returns a shape in which an object follows the name."""

    def span(message: str, anchor: str) -> tuple[int, int] | None:
        start = message.find(anchor)
        ends = (end for begun, end, value in _objects(message) if begun > start and value == _ARGUMENTS[1])
        return next(((start, end) for end in ends), None)

    found = span(text, probes.anchors[0])
    around = None if found is None else probes.around(*found, text, span)
    if found is None or around is None:
        return None
    begun = next(start for start, _, value in _objects(text) if value == _ARGUMENTS[1])
    middle = text[found[0] + len(probes.anchors[0]) : begun]
    return CallShape("named", **around, middle=middle, names_by_id=probes.anchors is not _NAMES)


def _python(probes: _Probes, text: str) -> CallShape | None:
    """Returns a shape in which calls have Python's syntax."""

    def span(message: str, anchor: str) -> tuple[int, int] | None:
        start = message.find(f"{anchor}(key0=")
        end = message.find("value0", start) + len("value0")
        return (start, end + 2) if start >= 0 and message[end + 1 : end + 2] == ")" else None

    found = span(text, probes.anchors[0])
    around = None if found is None else probes.around(*found, text, span)
    return None if around is None else CallShape("python", **around)


def _tagged(probes: _Probes, text: str) -> CallShape | None:
    """Returns a shape in which keys and values are between tags."""
    bodies = [probes.body([each]) for each in (*_ARGUMENTS, _NUMBER)]
    anchor = probes.anchors[0]
    none, one, two, number = (None if body is None else body.partition(anchor)[2] for body in bodies)
    if none is None or one is None or two is None or number is None or "key0" not in text or "value0" not in text:
        return None
    before_key, _, rest = one.partition("key0")
    key_close, _, end = rest.partition("value0")
    joint = two.partition("value0")[2].partition("key1")[0]
    other_key_close = number.partition("key1")[2].partition("4711")[0]
    # A call without arguments consists of the text before the first key and the text after the last value.
    for cut in reversed(range(len(before_key) + 1)):
        key_open, middle = before_key[cut:], before_key[:cut]
        value_close = joint.removesuffix(key_open)
        if key_open and value_close not in ("", joint) and value_close == _closed(value_close):
            rest = end.removeprefix(value_close)
            if rest != end and middle == _closed(middle) and pieces(middle + rest) == pieces(none):
                break
    else:
        return None

    def span(message: str, name: str) -> tuple[int, int] | None:
        start = message.find(name)
        closed = message.find(value_close, message.find("value0", start))
        return (start, closed + len(value_close)) if start >= 0 and closed >= 0 else None

    found = span(text, anchor)
    around = None if found is None else probes.around(*found, text, span)
    # A value within quotation marks is not written as plain text.
    is_quoted = key_close.removesuffix('"') == other_key_close != key_close
    if around is None or is_quoted or not key_close.strip() or not pieces(key_open) or not pieces(rest):
        return None
    return CallShape(
        "tagged", **around, middle=middle, key_open=key_open, key_close=key_close, value_close=value_close,
        other_key_close="" if other_key_close == key_close else other_key_close,
        has_cdata=CDATA in (probes.body([{"key0": _MARKED_UP}]) or ""),
    )  # fmt: skip
