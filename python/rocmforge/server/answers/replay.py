"""Replays the model's turns in later prompts with the token ids that the model generated.

A chat template renders a returned turn differently: other white space, other spacing in a call's arguments, other
tokens. The prefix cache would then end where the turn begins. So the server keeps the token ids of each generated turn,
and puts them in place of the template's.

The key of a turn is a digest of the prompt before it and of the content that the client received. No id from a client
is part of it. A turn is replayed only if all of these hold:

- The prompt before it is the same.
- The template's text parses as the same reasoning, answer and calls.
- The client sent exactly the content that it received.

So an edited turn stays edited, and reasoning that a template drops stays dropped.

Control tokens mark the places of turns. A client's text never becomes a control token, so it cannot make a place.
The text of client and template around a turn stays unchanged.
"""

import json
import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from rocmforge._rocmforge import SamplingParams, Tokenizer
from rocmforge.outputs import CompletionOutput
from rocmforge.parsing import Event, gather, parse
from rocmforge.parsing import Message as ParsedMessage
from rocmforge.prompts import ChatOptions, Conversation, Message
from rocmforge.server.answers.generation import Call
from rocmforge.server.answers.replies import FunctionTool, ServedFormat

# Bytes of a turn in addition to its token ids.
OVERHEAD = 512
_DIGEST_BYTES = 16


class Told(NamedTuple):
    """Digests of a turn's content."""

    exact: bytes
    """The digest of the exact content."""
    said: bytes
    """The digest without white space around the answer, which templates strip."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The end of a prompt, after which a turn begins."""

    client: str | None
    """The salt of the turn's client."""
    prompt: bytes
    """The digest of the prompt up to the last control token that does not mark reasoning."""
    mark: int
    """That token."""
    head: tuple[int, ...]
    """The prompt's tokens after it."""
    header: str
    """Their text before the model's own, such as the role's name."""
    answer: str
    """The beginning of the answer, if the model continues one."""
    reasoning: str
    """The reasoning before that answer."""


@dataclass(frozen=True, slots=True)
class _Turn:
    told: bytes
    """The digest of exactly the content that the client received."""
    ids: "array[int]"
    """The tokens after the mark."""
    num_ends: int
    """The number of these tokens that end a turn elsewhere."""

    @property
    def size(self) -> int:
        return self.ids.itemsize * len(self.ids) + OVERHEAD


@dataclass(slots=True)
class _Prompt:
    mark: int
    header: str
    turns: dict[bytes, _Turn] = field(default_factory=dict)
    """The turns that answered it, by their content."""


class _Shelf:
    """The turns of one client, ordered by last use."""

    def __init__(self) -> None:
        self.prompts: dict[bytes, _Prompt] = {}
        self.order: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()
        self.marks: Counter[int] = Counter()
        self.bytes = 0


class KeptTurns:
    """Keeps turns in memory, separately for each client key. Safe to use from many threads.

    Args:
        max_bytes: Maximum bytes for the turns of one client. The least recently used turns are dropped first.
        max_all_bytes: Maximum bytes for the turns of all clients.
    """

    def __init__(self, max_bytes: int, max_all_bytes: int) -> None:
        self._max_bytes = min(max_bytes, max_all_bytes)
        self._max_all_bytes = max_all_bytes
        self._lock = threading.Lock()
        self._shelves: dict[str | None, _Shelf] = {}
        # All turns, ordered by last use.
        self._order: OrderedDict[tuple[str | None, bytes, bytes], None] = OrderedDict()
        self._bytes = 0

    @property
    def num_bytes(self) -> int:
        """The number of bytes in use."""
        return self._bytes

    def put(self, beginning: Beginning, told: Told, ids: Sequence[int], num_ends: int) -> None:
        """Keeps a turn, unless it is larger than the limit."""
        turn = _Turn(told.exact, array("I", (*beginning.head, *ids)), num_ends)
        if turn.size > self._max_bytes:
            return
        client, prompt = beginning.client, beginning.prompt
        with self._lock:
            self._drop(client, prompt, told.said)
            shelf = self._shelves.setdefault(client, _Shelf())
            if prompt not in shelf.prompts:
                shelf.prompts[prompt] = _Prompt(beginning.mark, beginning.header)
                shelf.marks[beginning.mark] += 1
            shelf.prompts[prompt].turns[told.said] = turn
            shelf.order[prompt, told.said] = turn.size
            self._order[client, prompt, told.said] = None
            shelf.bytes += turn.size
            self._bytes += turn.size
            while shelf.bytes > self._max_bytes:
                self._drop(client, *next(iter(shelf.order)))
            while self._bytes > self._max_all_bytes:
                self._drop(*next(iter(self._order)))

    def marks(self, client: str | None) -> frozenset[int]:
        """Returns the tokens after which turns of a client begin."""
        with self._lock:
            shelf = self._shelves.get(client)
            return frozenset() if shelf is None else frozenset(shelf.marks)

    def begun(self, client: str | None, prompt: bytes, told: Collection[bytes]) -> tuple[str, list[int]] | None:
        """Looks up the turns that answered a prompt and that the client sends back.

        Args:
            client: The salt of the client.
            prompt: The digest of the prompt.
            told: Digests of all content that the client sends as the model's.

        Returns:
            The text with which the turns begin, and their different values of `num_ends`. `None` without such turns.
        """
        with self._lock:
            found = None if (shelf := self._shelves.get(client)) is None else shelf.prompts.get(prompt)
            if found is None:
                return None
            ends = sorted({turn.num_ends for turn in found.turns.values() if turn.told in told})
            return (found.header, ends) if ends else None

    def get(self, client: str | None, prompt: bytes, said: bytes, told: Collection[bytes]) -> "array[int] | None":
        """Returns the tokens of a turn; `None` if there is no such turn.

        Args:
            client: The salt of the client.
            prompt: The digest of the prompt that the turn answers.
            said: The digest of the turn's content.
            told: Digests of all content that the client sends as the model's.
        """
        with self._lock:
            shelf = self._shelves.get(client)
            found = None if shelf is None else shelf.prompts.get(prompt)
            if shelf is None or found is None or (turn := found.turns.get(said)) is None or turn.told not in told:
                return None
            shelf.order.move_to_end((prompt, said))
            self._order.move_to_end((client, prompt, said))
            return turn.ids

    def _drop(self, client: str | None, prompt: bytes, said: bytes) -> None:
        shelf = self._shelves.get(client)
        if shelf is None or (size := shelf.order.pop((prompt, said), None)) is None:
            return
        del self._order[client, prompt, said]
        shelf.bytes -= size
        self._bytes -= size
        kept = shelf.prompts[prompt]
        del kept.turns[said]
        if not kept.turns:
            del shelf.prompts[prompt]
            shelf.marks[kept.mark] -= 1
            shelf.marks += Counter()
        if not shelf.order:
            del self._shelves[client]


class Replay:
    """Replays kept turns in one prompt, and keeps the turns that answer it.

    Args:
        turns: The store of turns.
        replies: The reply format of the model.
        tokenizer: The tokenizer of the model.
        tools: The tools in the prompt.
        call: The request; its client owns the turns.
    """

    def __init__(
        self, turns: KeptTurns, replies: ServedFormat, tokenizer: Tokenizer, tools: Sequence[FunctionTool], call: Call
    ) -> None:
        self._turns = turns
        self._replies = replies
        self._tokenizer = tokenizer
        self._tools = tools
        self._client = call.client.salt
        # Turns are separated by cache salt, as the blocks of the prefix cache are.
        self._salt = repr(call.cache_salt).encode()
        harmony = replies.chat.calls == "harmony"
        # Within a conversation, a turn in harmony ends with the token that otherwise separates the parts of a turn.
        self._ends = {*tokenizer.eos_token_ids, *(self._special(replies.closing) if harmony else ())}

    def put(self, ids: list[int], conversation: Conversation) -> tuple[list[int], int]:
        """Replays turns in a prompt.

        Returns:
            The prompt's tokens, and the number of replayed turns.
        """
        marks = self._turns.marks(self._client)
        if not marks:
            return ids, 0
        told = {digests.exact for message in conversation for digests in _sent(message)}
        made = array("I")
        digest = blake2b(self._salt, digest_size=_DIGEST_BYTES)
        at = done = count = 0
        while at < len(ids):
            at += 1
            if ids[at - 1] not in marks:
                continue
            part = array("I", ids[done:at])
            digest.update(part)
            made += part
            done = at
            if (found := self._kept(digest.copy().digest(), ids, at, told)) is not None:
                turn, at = found
                digest.update(turn)
                made += turn
                done = at
                count += 1
        return ([*made, *ids[done:]], count) if count else (ids, 0)

    def _kept(self, prompt: bytes, ids: list[int], at: int, told: Collection[bytes]) -> "tuple[array[int], int] | None":
        """Returns the turn whose place begins at a token, and the end of the place."""
        if (begun := self._turns.begun(self._client, prompt, told)) is None:
            return None
        header, all_ends = begun
        ends = self._end(ids, at)
        passed = -1
        for num_ends in all_ends:
            end = at
            while passed < num_ends:
                end, passed = next(ends), passed + 1
            text = self._text(ids[at - 1], ids[at:end])
            if not text.startswith(header):
                continue
            prompt_text = self._tokenizer.decode([ids[at - 1]]) + header
            found = parse(self._replies.chat, text[len(header) :], self._tools, prompt_text)
            calls = [(call.name, call.arguments) for call in found.tool_calls]
            digests = _told(found.content, found.reasoning_content, calls)
            if digests is not None and (turn := self._turns.get(self._client, prompt, digests.said, told)) is not None:
                return turn, end
        return None

    def _end(self, ids: list[int], at: int) -> Iterator[int]:
        """Yields the possible ends of a turn after a token, then the end of the prompt without limit."""
        for index in range(at, len(ids)):
            if ids[index] in self._ends:
                yield index
        while True:
            yield len(ids)

    def beginning(self, ids: Sequence[int], conversation: Conversation, options: ChatOptions) -> Beginning | None:
        """Returns the beginning of a turn after a prompt; `None` if the turn could not be found again."""
        reasoning_ids = {*self._special(self._replies.opening), *self._special(self._replies.closing)}
        at = len(ids)
        while at and (ids[at - 1] in reasoning_ids or not self._tokenizer.is_special(ids[at - 1])):
            at -= 1
        if not at:
            return None
        answer = reasoning = ""
        if options.get("continue_final_message"):
            last = conversation[-1]
            if not isinstance(last.get("content"), str):
                return None
            answer, reasoning = last["content"], last.get("reasoning_content") or ""
        text = self._text(ids[at - 1], ids[at:])
        opening = self._opening
        if opening and opening in text:
            header = text[: text.index(opening)]
        else:
            header = text[: text.rindex(answer.strip())] if answer.strip() in text else text
        digest = blake2b(self._salt, digest_size=_DIGEST_BYTES)
        digest.update(array("I", ids[:at]))
        return Beginning(self._client, digest.digest(), ids[at - 1], tuple(ids[at:]), header, answer, reasoning)

    def recorder(self, beginning: Beginning, params: SamplingParams) -> "Recorder":
        """Returns a recorder that keeps one answer."""
        return Recorder(self._turns, beginning, self._tokenizer, self._ends, params)

    @property
    def _opening(self) -> str:
        """The marker that begins the reasoning."""
        if self._replies.chat.calls == "harmony":
            return "<|channel|>"
        return "" if self._replies.chat.thinking is None else self._replies.chat.thinking.open

    def _special(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special=False, parse_special=True)
        return [id_ for id_ in ids if self._tokenizer.is_special(id_)]

    def _text(self, mark: int, ids: Sequence[int]) -> str:
        return _text_behind(self._tokenizer, mark, ids)


class Recorder:
    """Keeps one turn, once it has ended with the finish reason `stop` or `length`.

    Args:
        turns: The store of turns.
        beginning: The end of the prompt before the turn.
        tokenizer: The model's tokenizer.
        ends: The tokens that end turns.
        params: The parameters of the request.
    """

    def __init__(
        self,
        turns: KeptTurns,
        beginning: Beginning,
        tokenizer: Tokenizer,
        ends: Collection[int],
        params: SamplingParams,
    ) -> None:
        self._turns = turns
        self._beginning = beginning
        self._tokenizer = tokenizer
        self._ends = ends
        self._engine_stops = bool(params.stop)
        self._stops = {*tokenizer.eos_token_ids, *(params.stop_token_ids or ())}
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._events: list[Event] = []

    def add(self, one: CompletionOutput, events: Iterable[Event]) -> None:
        """Adds the next output of the sequence, and the events that its client receives."""
        self._ids += one.token_ids
        self._texts.append(one.text)
        self._events += events
        if one.finish_reason not in ("stop", "length"):
            return
        found, begun = gather(self._events), self._beginning
        calls = [(call.name, call.arguments) for call in found.tool_calls]
        content = begun.answer + (found.content or "")
        told = _told(content, begun.reasoning + (found.reasoning_content or ""), calls)
        ids = self._answered(one, found)
        if told is not None and ids is not None:
            self._turns.put(begun, told, ids, sum(id_ in self._ends for id_ in (*begun.head, *ids)))

    def _answered(self, one: CompletionOutput, found: ParsedMessage) -> list[int] | None:
        """Returns the tokens of the text that the client received; `None` if no tokens spell it."""
        ids = self._ids
        if not isinstance(one.stop_reason, str):
            # The template writes the token that ends a turn.
            return ids[:-1] if one.finish_reason == "stop" and ids and ids[-1] in self._stops else ids
        text, mark = "".join(self._texts), self._beginning.mark
        if not self._engine_stops:
            # The parser found the stop string in the answer; the output may continue after it.
            reasoning, content = found.reasoning_content or "", found.content or ""
            begin = text.find(reasoning) + len(reasoning)
            at = text.find(content if content.endswith(one.stop_reason) else content + one.stop_reason, begin)
            if at < 0:
                return None
            text = text[: at + len(content)]
        count = len(ids)
        while not text.startswith(known := _text_behind(self._tokenizer, mark, ids[:count])):
            count -= 1
        rest = self._tokenizer.encode(text[len(known) :], add_special=False)
        ids = [*ids[:count], *rest]
        return ids if _text_behind(self._tokenizer, mark, ids) == text else None


def _text_behind(tokenizer: Tokenizer, mark: int, ids: Sequence[int]) -> str:
    """Returns the text of tokens that follow a control token."""
    return tokenizer.decode([mark, *ids]).removeprefix(tokenizer.decode([mark]))


def _sent(message: Message) -> Iterator[Told]:
    """Yields digests of a turn that a client sends, with the parts of its answer joined in each way of templates."""
    if message["role"] != "assistant":
        return
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(function["name"], function["arguments"]) for function in functions]
    content = message.get("content")
    texts = [part.get("text") or "" for part in content] if isinstance(content, list) else [content or ""]
    for joined in {"".join(texts), "\n".join(texts)}:
        if (told := _told(joined, message.get("reasoning_content"), calls)) is not None:
            yield told


def _told(content: str | None, reasoning: str | None, calls: Sequence[tuple[str, Any]]) -> Told | None:
    """Returns the digests of a message; `None` if the arguments of a call are invalid, for example cut off."""
    known = []
    for name, given in calls:
        try:
            arguments = json.loads(given) if isinstance(given, str) else given
            known.append([name, json.dumps(_plain(arguments), sort_keys=True)])
        except (ValueError, RecursionError):
            return None
    content = content or ""
    if not content.strip():
        # Some clients send a space in place of an empty answer.
        content = ""
    rest = [(reasoning or "").strip(), known]
    exact, said = (
        blake2b(json.dumps([text, *rest]).encode(), digest_size=_DIGEST_BYTES).digest()
        for text in (content, content.strip())
    )
    return Told(exact, said)


def _plain(value: Any) -> Any:
    """Returns a JSON value with whole numbers as integers, because JavaScript writes 1.0 as 1."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
