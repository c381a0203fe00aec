"""Encodes reasoning as an opaque text that clients store and send back, for APIs with a field for it.

It is not encryption: a client may read the reasoning of its answer.
"""

import base64
import binascii

_MARK = "rocmforge."


def sealed(reasoning: str) -> str:
    """Returns reasoning as an opaque text."""
    return _MARK + base64.b64encode(reasoning.encode()).decode()


def opened(text: str) -> str:
    """Returns the reasoning in an opaque text; an empty string if another server made the text."""
    if not text.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(text.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
