"""Fill-in-the-middle prompts, for models that were trained for them."""

from rocmforge.server.errors import ApiError
from rocmforge.server.lengths import check_length
from rocmforge.server.service import Service

# Tokens before the prefix, before the suffix, and before the answer.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


def infill_prompt(service: Service, prefix: str, suffix: str) -> list[int]:
    """Returns the tokens of a prompt whose answer goes between two texts.

    Raises:
        ApiError: A text is too long, or the vocabulary has no tokens that mark the three places.
    """
    check_length(service.engine, "prompt", prefix)
    check_length(service.engine, "suffix", suffix)
    tokenizer = service.engine.tokenizer
    for texts in _MARKS:
        marks = [tokenizer.encode(text, add_special=False, parse_special=True) for text in texts]
        if all(len(mark) == 1 for mark in marks):
            begin, hole, end = marks
            before, behind = (tokenizer.encode(text, add_special=False) for text in (prefix, suffix))
            return [*tokenizer.encode(""), *begin, *before, *hole, *behind, *end]
    raise ApiError(
        400, "suffix: the model's vocabulary has no tokens to fill in the middle; leave it out", param="suffix"
    )
