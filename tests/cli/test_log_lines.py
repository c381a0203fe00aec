"""Lines of the log are lines, whatever a file is called or a client has sent."""

import io
import logging

from rocmforge.log import Formatter


def test_a_message_is_one_line():
    """H22: control characters of names are written as escapes; what is readable stays."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter("%(levelname)s: %(message)s"))
    logger = logging.Logger("lines")
    logger.addHandler(handler)
    name = "a\x1b]0;x\x07\nINFO: forged\r\x9b2J\u202egpj.gguf ä € \\"
    logger.warning("model %s: loaded", name)
    assert stream.getvalue() == (
        "WARNING: model a\\x1b]0;x\\x07\\nINFO: forged\\r\\x9b2J\\u202egpj.gguf ä € \\: loaded\n"
    )


def test_an_exception_keeps_its_lines():
    """H22: a traceback has as many lines as it has."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter("%(message)s"))
    logger = logging.Logger("lines")
    logger.addHandler(handler)
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("failed\n")
    lines = stream.getvalue().splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("failed\\n", "Traceback (most recent call last):", "ValueError: x")
