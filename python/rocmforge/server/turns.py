"""Conversations as agents send them, made into such as chat templates take."""

import json
from collections.abc import Sequence
from typing import Any

TemplateMessage = dict[str, Any]


def in_turns(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Makes one message of what follows each other in the system's role, or in the user's.

    Many templates refuse a system message behind others, and some lose it: such a one is a part of the user's turn.
    """
    made: list[TemplateMessage] = []
    for message in messages:
        begins = all(other["role"] == "system" for other in made)
        if message["role"] == "system" and not begins:
            message = {"role": "user", "content": message["content"]}  # noqa: PLW2901 - the same message
        if made and message["role"] in ("system", "user") and made[-1]["role"] == message["role"]:
            both = [*_parts(made[-1]["content"]), *_parts(message["content"])]
            made[-1] = {"role": message["role"], "content": both}
        else:
            made.append(message)
    return made


def call_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call as an object.

    A model may have broken off, or written no JSON. Its client sends that back in each turn from then on; the model
    finds it under `invalid_arguments`.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"invalid_arguments": text}


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
