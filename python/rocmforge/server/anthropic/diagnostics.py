"""Explains prefix cache misses by comparing a prompt with that of an earlier request."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rocmforge.outputs import RequestOutput
from rocmforge.server.answers.generation import Client
from rocmforge.server.bodies import Body
from rocmforge.server.chat.turns import TemplateMessage
from rocmforge.server.images.sent import SentImage

# Most requests to remember, at a few hundred bytes each.
MAX_REMEMBERED = 10_000


class Diagnostics(Body):
    """A client's question about the prefix cache."""

    previous_message_id: str | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests of the parts of a prompt, which show where another prompt differs."""

    model: str
    tools: bytes
    system: bytes
    turns: tuple[bytes, ...]
    """A digest for each turn and all before it."""

    @classmethod
    def of(cls, model: str, tools: Sequence[Any], messages: Sequence[TemplateMessage]) -> "Fingerprint":
        """Makes it from the chat template's input."""
        chain, turns = hashlib.sha256(), []
        for message in messages:
            if message["role"] != "system":
                chain.update(_bytes(message))
                turns.append(chain.digest())
        system = [message for message in messages if message["role"] == "system"]
        return cls(model, _digest(list(tools)), _digest(system), tuple(turns))


@dataclass(frozen=True, slots=True)
class _Before:
    """The prompt of an earlier request, in a bounded number of bytes."""

    model: str
    tools: bytes
    system: bytes
    num_turns: int
    last_turn: bytes
    num_tokens: int

    def changed(self, now: Fingerprint) -> str | None:
        """Returns Anthropic's reason why a prompt does not continue this one, if it does not."""
        if now.model != self.model:
            return "model_changed"
        if now.system != self.system:
            return "system_changed"
        if now.tools != self.tools:
            return "tools_changed"
        if len(now.turns) < self.num_turns or now.turns[self.num_turns - 1] != self.last_turn:
            return "messages_changed"
        return None


class Remembered:
    """The prompts of requests whose clients want diagnostics; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._before: OrderedDict[tuple[Client, str], _Before] = OrderedDict()

    def add(self, client: Client, message_id: str, fingerprint: Fingerprint, num_tokens: int) -> None:
        """Keeps the prompt that a message answers."""
        turns = fingerprint.turns
        self._before[client, message_id] = _Before(
            fingerprint.model,
            fingerprint.tools,
            fingerprint.system,
            len(turns),
            turns[-1] if turns else b"",
            num_tokens,
        )
        if len(self._before) > MAX_REMEMBERED:
            self._before.popitem(last=False)

    def value(
        self, client: Client, asked: Diagnostics, fingerprint: Fingerprint, output: RequestOutput, block_size: int
    ) -> dict[str, Any] | None:
        """Returns Anthropic's `diagnostics` object; `None` if the cache had every block that it could have.

        `prefix_miss` is the engine's own reason, as `/v1/engine/requests` has it.

        Args:
            client: The client that asks.
            asked: The earlier request to compare with.
            fingerprint: The prompt of this one.
            output: The request's output.
            block_size: Tokens of a block; only whole blocks are cached.
        """
        if asked.previous_message_id is None:
            return None
        own = {"prefix_miss": output.metrics.prefix_miss}
        before = self._before.get((client, asked.previous_message_id))
        if before is None:
            return {"cache_miss_reason": {"type": "previous_message_not_found"} | own}
        could_have = before.num_tokens // block_size * block_size
        missed = could_have - output.num_cached_tokens
        if missed <= 0:
            return None
        changed = before.changed(fingerprint)
        if changed is None:
            return {"cache_miss_reason": {"type": "unavailable"} | own}
        return {"cache_miss_reason": {"type": changed, "cache_missed_input_tokens": missed} | own}


def _bytes(value: Any) -> bytes:
    # Clients may send lone surrogates, which are refused elsewhere.
    return json.dumps(value, sort_keys=True, default=SentImage.digest).encode()


def _digest(value: Any) -> bytes:
    return hashlib.sha256(_bytes(value)).digest()[:16]
