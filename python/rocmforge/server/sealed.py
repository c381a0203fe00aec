"""Thoughts in a form that clients keep and send back without reading it, where their API has a place for such.

It is no encryption: who asks for an answer may read its thoughts.
"""

import base64
import binascii

_MARK = "rocmforge."


def sealed(thoughts: str) -> str:
    """The form of thoughts."""
    return _MARK + base64.b64encode(thoughts.encode()).decode()


def opened(text: str) -> str:
    """The thoughts that a form holds; none of a text that another server has made."""
    if not text.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(text.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
