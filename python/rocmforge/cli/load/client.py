"""The client of a load on a server: requests for completions, whose answers are read as they come."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import h11

from rocmforge.cli.load.requests import Ask

READ_BYTES = 1 << 16


def of_server(url: str, model: str | None, api_key: str | None, settings: Mapping[str, Any]) -> Ask:
    """Asks a server by OpenAI's API for completions.

    Args:
        url: The server's address, with or without `/v1`.
        model: The name of its model, if it needs one.
        api_key: What it wants to be shown.
        settings: Further fields of each request, such as how to sample.

    Raises:
        ValueError: The address is not an HTTP address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        raise ValueError(f"--url: got {url!r}, expected an address such as http://127.0.0.1:8000")
    host, secure = parts.hostname, parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    target = f"{parts.path.rstrip('/').removesuffix('/v1')}/v1/completions"
    headers = {"Host": parts.netloc, "Content-Type": "application/json", "Connection": "close"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    asked: dict[str, Any] = {
        **settings,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if model is not None:
        asked["model"] = model

    async def ask(prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        body = json.dumps(asked | {"prompt": prompt, "max_tokens": max_tokens}).encode()
        tokens = 0
        async for event in _events(
            host, port, target, headers | {"Content-Length": str(len(body))}, body, secure=secure
        ):
            if "error" in event:
                raise RuntimeError(str(event["error"].get("message", event["error"])))
            usage = event.get("usage") or {}
            # A server that does not say how many tokens a piece has is taken to send each on its own.
            tokens = usage.get("completion_tokens", tokens + any(map(_is_piece, event.get("choices", ()))))
            yield tokens

    return ask


def _is_piece(choice: Mapping[str, Any]) -> bool:
    """True if a token came. Its text may be empty, as it is in a choice that only ends the text."""
    return bool(choice.get("text")) or choice.get("finish_reason") is None


async def _events(
    host: str, port: int, target: str, headers: dict[str, str], body: bytes, *, secure: bool
) -> AsyncIterator[dict[str, Any]]:
    """Posts a body and yields the server-sent events of the answer, up to `[DONE]`.

    Raises:
        RuntimeError: The answer does not have the status 200, or is not HTTP; the message is the server's.
    """
    connection = h11.Connection(h11.CLIENT)
    reader, writer = await asyncio.open_connection(host, port, ssl=secure or None)
    try:
        request = h11.Request(method="POST", target=target, headers=list(headers.items()))
        for sent in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(sent) or b"")
        await writer.drain()
        text, status = b"", 0
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                text += bytes(event.data)
                if status == 200:
                    *whole, text = text.split(b"\n\n")
                    for one in whole:
                        if one.startswith(b"data: ") and one != b"data: [DONE]":
                            yield json.loads(one.removeprefix(b"data: "))
            elif isinstance(event, h11.EndOfMessage):
                if status != 200:
                    raise RuntimeError(f"HTTP {status}: {text[:500].decode(errors='replace')}")
                return
    except h11.ProtocolError as error:
        raise RuntimeError(f"the answer is no HTTP: {error}") from error
    finally:
        writer.close()
