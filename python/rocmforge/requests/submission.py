"""Checks prompts before they go to the engine."""

from collections.abc import Sequence

from rocmforge._rocmforge import Image, PoolingParams, SamplingParams
from rocmforge.errors import InvalidRequestError
from rocmforge.images import NO_ENCODER
from rocmforge.isolation import AnyEngine
from rocmforge.prompts import Prompt


def prepared(
    engine: AnyEngine, prompt: Prompt, params: SamplingParams | PoolingParams, images: Sequence[Image]
) -> list[int]:
    """Returns the token ids of a prompt, after a check that it can be served. Each image keeps its one placeholder.

    Raises:
        InvalidRequestError: It cannot be served.
    """
    if not images:
        return engine.prepare(prompt, params)
    ids = placed(engine, prompt)
    engine.prepare(ids, params, images)
    return ids


def placed(engine: AnyEngine, prompt: Prompt) -> list[int]:
    """Returns the token ids of a prompt with images. Its program wrote it, and spells the placeholders in it.

    Raises:
        InvalidRequestError: The model accepts only text, or the text cannot be tokenized.
    """
    check_reads_images(engine)
    return engine.tokenizer.encode(prompt, parse_special=True) if isinstance(prompt, str) else list(prompt)


def check_reads_images(engine: AnyEngine) -> None:
    """Checks that a model has an image encoder.

    Raises:
        InvalidRequestError: It accepts only text.
    """
    if engine.mmproj is None:
        raise InvalidRequestError(NO_ENCODER)
