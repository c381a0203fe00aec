"""Log-probabilities in OpenAI's two formats."""

import codecs
from collections import deque
from collections.abc import Sequence
from typing import Any

from rocmforge._rocmforge import Tokenizer
from rocmforge.outputs import CompletionOutput, Logprob
from rocmforge.parsing import Content, Event, ToolCallStart

Position = dict[int, Logprob]

# JSON has no infinities: a token that a filter excluded gets the number from OpenAI's documentation.
LEAST = -9999.0


def _number(logprob: float) -> float:
    return max(logprob, LEAST)


class Offsets:
    """Counts the characters of a text before each of its tokens, which may be parts of characters.

    Args:
        tokenizer: The model's.
        skip_special: True if the text has no control tokens.
        before: The tokens before the text.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = (), *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._previous = next((token for token in reversed(before) if not tokenizer.is_special(token)), None)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    @property
    def length(self) -> int:
        """The characters of all tokens so far."""
        return self._length

    def next(self, token: int) -> int:
        """Returns the characters before the next token, without the character that it continues, if any."""
        if self._skip_special and self._tokenizer.is_special(token):
            return self._length
        data = bytes_of(token, self._tokenizer, self._previous)
        self._previous = token
        goes_on = bool(data) and data[0] & 0xC0 == 0x80
        # A character that was not completed counts as one.
        begun = bool(self._decoder.getstate()[0]) and not goes_on
        offset = self._length + (begun and bool(data))
        self._length += len(self._decoder.decode(data))
        return offset


def bytes_of(token: int, tokenizer: Tokenizer, previous: int | None) -> bytes:
    """Returns the bytes of a token after another one: some vocabularies drop the space before a text's first word."""
    if previous is None:
        return tokenizer.decode_bytes([token])
    return tokenizer.decode_bytes([previous, token])[len(tokenizer.decode_bytes([previous])) :]


class TokenTexts:
    """The bytes and texts of single tokens within a text, with the spaces before words.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        before = tokenizer.encode("a", add_special=False)
        self._before = before[-1] if before else None

    def data(self, token: int) -> bytes:
        """Returns the bytes of a token."""
        return bytes_of(token, self._tokenizer, self._before)

    def text(self, token: int) -> str:
        """Returns the text of a token; incomplete characters become U+FFFD."""
        return self.data(token).decode("utf-8", "replace")

    def name(self, token: int) -> str:
        """Returns the text of a token; for a part of a character its bytes, as OpenAI writes them."""
        data = self.data(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def completion_logprobs(
    positions: Sequence[Position | None], ids: Sequence[int], offsets: Sequence[int], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Returns log-probabilities in the format of completions.

    Args:
        positions: One entry for each token: the chosen token first, then the most likely ones. Nothing precedes the
            first token of a prompt, so it has no probability, and `None` stands for it.
        ids: The tokens.
        offsets: The characters of the text before each.
        tokenizer: The model's.
    """
    texts = TokenTexts(tokenizer)
    chosen: list[float | None] = []
    top: list[dict[str, float] | None] = []
    for position in positions:
        if position is None:
            chosen.append(None)
            top.append(None)
            continue
        chosen.append(_number(next(iter(position.values())).logprob))
        top.append({texts.name(token): _number(entry.logprob) for token, entry in position.items()})
    tokens = [texts.name(token) for token in ids]
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": [*offsets]}


def chat_logprobs(positions: Sequence[Position], tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    """Returns log-probabilities in the format of chats: each token with its bytes and the `top` most likely ones."""
    texts = TokenTexts(tokenizer)
    return {"content": [_position(position, texts, top) for position in positions], "refusal": None}


def _position(position: Position, texts: TokenTexts, top: int) -> dict[str, Any]:
    entries = [(token, entry) for token, entry in position.items() if entry.rank <= top]
    entries.sort(key=lambda item: item[1].rank)
    token, entry = next(iter(position.items()))
    likely = [_described(token, entry, texts) for token, entry in entries]
    return _described(token, entry, texts) | {"top_logprobs": likely}


def _described(token: int, entry: Logprob, texts: TokenTexts) -> dict[str, Any]:
    return {"token": texts.text(token), "logprob": _number(entry.logprob), "bytes": list(texts.data(token))}


# Characters of markers and white space that may stand between two parts of a reply.
_BETWEEN = 4096


class AnswerLogprobs:
    """Finds the log-probabilities of the tokens of an answer's text, among those of a whole reply.

    Args:
        tokenizer: The model's.
        top: Number of most likely tokens to report for each token.
        skip_special: True if the reply's text has no control tokens.
    """

    def __init__(self, tokenizer: Tokenizer, top: int, *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._texts = TokenTexts(tokenizer)
        self._top = top
        self._skip_special = skip_special
        self._offsets = Offsets(tokenizer, skip_special=skip_special)
        # The text of the reply that no event has had yet, the characters before it, and its tokens with their places.
        self._rest = ""
        self._before = 0
        self._tokens: deque[tuple[int, int, Position]] = deque()

    def add(self, one: CompletionOutput) -> None:
        """Adds the next output of the sequence."""
        self._rest += one.text
        for token, position in zip(one.token_ids, one.logprobs or (), strict=False):
            start = self._offsets.next(token)
            if not (self._skip_special and self._tokenizer.is_special(token)):
                self._tokens.append((start, self._offsets.length, position))

    def take(self, event: Event) -> list[dict[str, Any]]:
        """Returns the log-probabilities of an event's text, if it is a part of the answer.

        The events come in the order of the reply. A text that differs from what the model wrote has none.
        """
        text = "" if isinstance(event, ToolCallStart) else event.text
        if (at := self._place(text)) < 0:
            # Space at its beginning may come from before a call.
            text = text.strip()
            at = self._place(text)
        if at < 0 or not text:
            return []
        begin, end = self._before + at, self._before + at + len(text)
        self._rest, self._before = self._rest[at + len(text) :], end
        found = []
        while self._tokens and self._tokens[0][0] < end:
            start, stop, position = self._tokens.popleft()
            if isinstance(event, Content) and (start >= begin or stop > begin):
                found.append(_position(position, self._texts, self._top))
        return found

    def _place(self, text: str) -> int:
        return self._rest.find(text, 0, len(text) + _BETWEEN)
