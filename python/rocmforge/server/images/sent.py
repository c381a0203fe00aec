"""Images that clients send: parts of messages, read within the bounds of the server."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rocmforge._rocmforge import Image
from rocmforge.errors import InvalidRequestError
from rocmforge.images import NO_ENCODER, data_bytes, from_base64
from rocmforge.prompts import Message
from rocmforge.server.config import ServerConfig
from rocmforge.server.errors import ApiError
from rocmforge.server.images.fetching import fetch
from rocmforge.server.images.kept import KeptImages

# Seconds for all images of a request that are fetched.
FETCH_SECONDS = 10.0
OMITTED = "[image omitted: this model reads text only]"


class SentImage:
    """An image of a client that is not read yet.

    Args:
        place: The parameter of the API that has it, for errors.
        url: A `data:` URL, or one of a host.
        content: The bytes of a file in base64, in place of a URL.
    """

    def __init__(self, place: str, *, url: str | None = None, content: str | None = None) -> None:
        self.place = place
        self._url = url
        self._content = content
        self._image: Image | None = None

    def part(self) -> dict[str, Any]:
        """Returns the part of a message that holds the image."""
        return {"type": "image", "image": self}

    def digest(self) -> str:
        """Returns a digest of what the client sent."""
        return hashlib.sha256((self._url or self._content or "").encode("utf-8", "replace")).hexdigest()

    def read(self, budget: "Budget") -> Image:
        """Returns the image; a second call does no work.

        Raises:
            ApiError: It cannot be read, or exceeds what is left of a bound.
        """
        try:
            if self._image is None:
                self._image = self._read(budget)
            budget.spend(self._image)
        except InvalidRequestError as error:
            raise ApiError(400, f"{self.place}: {str(error).removeprefix('image: ')}", param=self.place) from error
        return self._image

    def _read(self, budget: "Budget") -> Image:
        if self._url is not None and self._url[:5].lower() != "data:":
            # A host may change its image, so it is not kept.
            return budget.decode(fetch(self._url, budget.hosts, budget.max_bytes, budget.deadline))
        key = budget.client, self.digest()
        image = budget.kept.get(key)
        if image is None:
            image = budget.decode(from_base64(self._content or "") if self._url is None else data_bytes(self._url))
            budget.kept.put(key, image)
        return image


class Budget:
    """Limits for the images of one request.

    Args:
        config: The bounds.
        kept: The images of earlier requests.
        client: The salt of the client.
    """

    def __init__(self, config: ServerConfig, kept: KeptImages, client: str | None) -> None:
        self.kept = kept
        self.client = client
        self.hosts = frozenset(map(str.lower, config.allowed_image_host))
        self.max_bytes = config.max_image_bytes
        self.pixels = config.max_image_pixels
        self.deadline = time.monotonic() + FETCH_SECONDS

    def decode(self, content: bytes) -> Image:
        """Returns the image in a file.

        Raises:
            InvalidRequestError: It is none that can be read, or exceeds a bound.
        """
        return Image(content, max_bytes=self.max_bytes, max_pixels=self.pixels)

    def spend(self, image: Image) -> None:
        """Counts an image.

        Raises:
            InvalidRequestError: Too few pixels are left for it.
        """
        size = image.width * image.height
        if size > self.pixels:
            raise InvalidRequestError(f"image: got {size} pixels, expected at most {self.pixels} in what is left")
        self.pixels -= size


def sent_images(messages: Sequence[Message]) -> Iterator[SentImage]:
    """Yields the images in the parts of messages, in order."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and isinstance(part.get("image"), SentImage):
                yield part["image"]


def read_images(
    messages: Sequence[Message], config: ServerConfig, kept: KeptImages, client: str | None
) -> tuple[Image, ...]:
    """Reads the images in messages.

    Args:
        messages: The messages.
        config: The bounds.
        kept: The images of earlier requests.
        client: The salt of the client.

    Raises:
        ApiError: There are too many, or one cannot be read.
    """
    sent = list(sent_images(messages))
    if len(sent) > config.max_images:
        place = sent[config.max_images].place
        raise ApiError(
            400,
            f"{place}: got {len(sent)} images, expected at most {config.max_images} in a request (the server's "
            "max_images)",
            param=place,
        )
    budget = Budget(config, kept, client)
    return tuple(image.read(budget) for image in sent)


def placeholders(messages: Sequence[Message]) -> list[Message]:
    """Returns messages as chat templates take them, in which a part says that an image stands there."""
    return [_changed(message, {"type": "image"}) for message in messages]


def without_images(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns messages for a text-only model: in results of tools, a note replaces each image.

    Tools return images in the middle of an agent's work, and the session must continue.

    Raises:
        ApiError: Another message has an image.
    """
    for sent in sent_images([message for message in messages if message["role"] != "tool"]):
        raise ApiError(400, f"{sent.place}: {NO_ENCODER.removeprefix('image: ')}", param=sent.place)
    made = []
    for message in messages:
        changed = _changed(message, {"type": "text", "text": OMITTED})
        if changed is not message:
            changed = {**changed, "content": "\n".join(part["text"] for part in changed["content"])}
        made.append(changed)
    return made


def images_after_results(messages: Sequence[Message]) -> list[Message]:
    """Returns messages in which images of tool results follow in a turn of the user, for templates that lose them."""
    made: list[Message] = []
    waiting: list[dict[str, Any]] = []
    for message in [*messages, None]:
        if waiting and (message is None or message["role"] != "tool"):
            parts = [{"type": "text", "text": "Images of the results:"}, *waiting]
            waiting = []
            if message is not None and message["role"] == "user":
                content = message["content"]
                rest = [{"type": "text", "text": content}] if isinstance(content, str) else content
                made.append({**message, "content": [*parts, *rest]})
                continue
            made.append({"role": "user", "content": parts})
        if message is None:
            break
        if message["role"] == "tool" and (found := list(sent_images([message]))):
            waiting += [image.part() for image in found]
            texts = [part["text"] for part in message["content"] if "text" in part]
            message = {**message, "content": "\n".join(texts)}  # noqa: PLW2901 - the same message
        made.append(message)
    return made


def _changed(message: Message, part: dict[str, str]) -> Message:
    """Returns a message with a part in place of each image; the message itself if it has none."""
    if not any(True for _ in sent_images([message])):
        return message
    content = [part if isinstance(each.get("image"), SentImage) else each for each in message["content"]]
    return {**message, "content": content}
